fail() {
    echo "$0: $1" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "run this as root"
