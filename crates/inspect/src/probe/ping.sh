# All addresses at the same time, each in a section of its own.
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
number=0
for ip in @ADDRESSES@; do
  number=$((number + 1))
  say "ping $ip" 3 ping -n -c 3 -i 0.2 "$ip" > "$folder/$number" &
done
wait
cat "$folder"/*
