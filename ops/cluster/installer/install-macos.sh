
for name in $names; do
    label=com.pomona.$name
    if launchctl print "system/$label" >/dev/null 2>&1; then
        [ "$changed" ] || continue
        # It says that it goes on with this when running streams keep the job from ending at once.
        launchctl bootout "system/$label" || echo "Waiting for $label to end."
        while launchctl print "system/$label" >/dev/null 2>&1; do sleep 1; done
    fi
    launchctl enable "system/$label"
    launchctl bootstrap system "$units/$label.plist"
done
