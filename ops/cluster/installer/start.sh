
for name in $names; do
    begin "$name"
    rm -f "$services/restart-$name"
done
