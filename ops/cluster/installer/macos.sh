
unit() {
    echo "com.pomona.$1.plist"
}

read_units() {
    : # launchd does when it is given one.
}

begin() {
    if [ -e "$services/restart-$1" ] || ! is_up "$1"; then
        take_down "$1"
        launchctl enable "system/com.pomona.$1"
        bring_up "$1"
    fi
}

# When running streams have ended, and for good: no boot starts it again.
end() {
    launchctl disable "system/com.pomona.$1"
    take_down "$1"
}

# One that is ending is known to launchd, and not up.
is_up() {
    launchctl print "system/com.pomona.$1" 2>/dev/null | grep -Eq '^[[:space:]]*state = (not )?running'
}

is_known() {
    launchctl print "system/com.pomona.$1" >/dev/null 2>&1
}

take_down() {
    is_known "$1" || return 0
    # It returns before the job has ended, or fails because the job is ending already.
    launchctl bootout "system/com.pomona.$1" || echo "Waiting for com.pomona.$1 to end."
    while is_known "$1"; do sleep 1; done
}

# For some seconds after its end launchd still refuses a job.
bring_up() {
    attempts=1
    until launchctl bootstrap system "$units/$(unit "$1")"; do
        [ "$attempts" -lt 30 ] || fail "launchd does not take $units/$(unit "$1")"
        attempts=$((attempts + 1))
        sleep 1
    done
}
