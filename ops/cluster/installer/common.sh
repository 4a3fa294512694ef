# Files go to their places; what has to start again because of that is in `changed`.

cd "$(dirname "$0")"

fail() {
    echo "$0: $1" >&2
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "run this as root"
[ -x "$package/.venv/bin/ray" ] || fail "no Ray in $package/.venv: run make setup there"
id "$user" >/dev/null 2>&1 || fail "there is no user $user: make one, or set \`user\` in the host list"
group=$(id -gn "$user")
home=$(eval echo "~$user")
changed=

place() { # source, target, mode, owner
    if ! cmp -s "$1" "$2"; then
        case $1 in
        cluster.yaml) echo "To deploy the new $1: sudo -H -u $user $services/pomona-deploy" ;;
        api_keys* | pomona | pomona-deploy) ;;
        *) changed=yes ;;
        esac
    fi
    install -o "$4" -g "$(id -gn "$4")" -m "$3" "$1" "$2"
}

mkdir -p "$services" "$state" "$home/.pomona"
install -d -o "$user" -g "$group" -m 700 "$state" "$state/log" "$home/.pomona"
for file in *; do
    case $file in
    install | uninstall) ;;
    *.service | *.plist) place "$file" "$units/$file" 644 root ;;
    api_keys*) place "$file" "$home/.pomona/$file" 600 "$user" ;;
    pomona*) place "$file" "$services/$file" 755 root ;;
    environment | auth_token | *.key) place "$file" "$services/$file" 600 "$user" ;;
    *) place "$file" "$services/$file" 644 root ;;
    esac
done
