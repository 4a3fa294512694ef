for name in $names; do
    label=com.pomona.$name
    launchctl bootout "system/$label" || echo "Waiting for $label to end."
    while launchctl print "system/$label" >/dev/null 2>&1; do sleep 1; done
    rm "$units/$label.plist"
done
