
systemctl daemon-reload
for name in $names; do
    systemctl enable "pomona-$name"
    if [ "$changed" ]; then
        # Running streams end first, so this may take minutes.
        systemctl restart "pomona-$name"
    else
        systemctl start "pomona-$name"
    fi
done
