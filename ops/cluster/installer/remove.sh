
for name in $names; do
    [ -e "$units/$(unit "$name")" ] || continue
    end "$name"
    rm "$units/$(unit "$name")"
done
# What a timer starts.
rm -f "$units/pomona-clean.service"
read_units
cd "$services"
rm -f pomona pomona-* restart-* environment head_environment auth_token heartbeat_key cluster.yaml redis.conf store-*
echo "Left are $state, what is in ~$user/.pomona, and what others put into $services."
