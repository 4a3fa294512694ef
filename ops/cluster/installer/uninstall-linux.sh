for name in $names; do
    systemctl disable --now "pomona-$name"
    rm "$units/pomona-$name.service"
done
systemctl daemon-reload
