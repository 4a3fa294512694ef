
unit() {
    case $1 in
    clean) echo pomona-clean.timer ;;
    *) echo "pomona-$1.service" ;;
    esac
}

read_units() {
    systemctl daemon-reload
}

begin() {
    systemctl enable "$(unit "$1")"
    if [ -e "$services/restart-$1" ]; then
        # Running streams end first, so this may take minutes.
        systemctl restart "$(unit "$1")"
    else
        systemctl start "$(unit "$1")"
    fi
}

# When running streams have ended, and for good: no boot starts it again.
end() {
    systemctl disable --now "$(unit "$1")"
}
