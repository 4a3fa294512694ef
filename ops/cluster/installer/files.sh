
# Files go to their places. Services that have to start again because of that have a file
# `restart-...` until they have, so that an install that was cut off is finished by the next.

cd "$(dirname "$0")"
[ -x "$package/.venv/bin/ray" ] || fail "no Ray in $package/.venv: run make setup there"
id "$user" >/dev/null 2>&1 || fail "there is no user $user: make one, or set \`user\` in the host list"
group=$(id -gn "$user")
home=$(eval echo "~$user")

place() { # source, target, mode, owner
    if ! cmp -s "$1" "$2"; then
        case $1 in
        cluster.yaml) echo "To deploy the new $1: sudo -H -u $user $services/pomona-deploy" ;;
        api_keys* | heartbeat_key | pomona | pomona-clean | pomona-deploy | pomona-start | pomona-stop) ;;
        *clean*) : >"$services/restart-clean" ;;
        *heartbeat*) : >"$services/restart-heartbeat" ;;
        head_environment | *pomona-head* | *pomona.head*) : >"$services/restart-head" ;;
        *pomona-ray* | *pomona.ray*) : >"$services/restart-ray" ;;
        *store* | redis.conf) for name in store head; do : >"$services/restart-$name"; done ;;
        *) for name in $names; do : >"$services/restart-$name"; done ;;
        esac
    fi
    install -o "$4" -g "$(id -gn "$4")" -m "$3" "$1" "$2"
}

[ -d "$home" ] || install -d -o "$user" -g "$group" -m 700 "$home"
[ "$(find "$home" -prune -user "$user")" ] ||
    fail "$user cannot keep models in $home: chown $user $home, or give the user another home"
mkdir -p "$services" "$state" "$home/.pomona"
install -d -o "$user" -g "$group" -m 700 "$state" "$state/log" "$home/.pomona"
for file in *; do
    case $file in
    install | uninstall) ;;
    *.service | *.timer) place "$file" "$units/$file" 644 root ;;
    *.plist)
        place "$file" "$units/$file" 644 root
        name=${file#com.pomona.}
        log=$state/log/${name%.plist}.log
        # The service's user shortens it, whoever launchd opens it as.
        [ -e "$log" ] || install -o "$user" -g "$group" -m 600 /dev/null "$log"
        ;;
    api_keys*) place "$file" "$home/.pomona/$file" 600 "$user" ;;
    pomona*) place "$file" "$services/$file" 755 root ;;
    environment | head_environment | auth_token | heartbeat_key | *.key) place "$file" "$services/$file" 600 "$user" ;;
    *) place "$file" "$services/$file" 644 root ;;
    esac
done

# What it had for a role that it no longer has.
for name in ray head store heartbeat; do
    case " $names " in *" $name "*) continue ;; esac
    [ -e "$units/$(unit "$name")" ] || continue
    end "$name"
    rm "$units/$(unit "$name")"
done
for path in "$services"/pomona* "$services"/store-* "$services/redis.conf" "$services/cluster.yaml" \
    "$services/heartbeat_key" "$services/head_environment"; do
    [ -e "$(basename "$path")" ] || rm -f "$path"
done
read_units
