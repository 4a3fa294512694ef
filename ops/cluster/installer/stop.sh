
for name in $names; do
    # What was told to end is not up, even while it is still there.
    : >"$services/restart-$name"
    end "$name"
done
