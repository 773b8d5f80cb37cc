# The files of a model's folder. Links are followed, as a cache is full of them.
cd @FOLDER@ 2>/dev/null || { echo '@@no-folder'; exit 0; }
echo '@@folder'
for file in *; do
  [ -f "$file" ] || continue
  sum=-
  if [ -n "$HASH" ]; then
    sum=$( (sha256sum "$file" || shasum -a 256 "$file") 2>/dev/null | cut -d' ' -f1)
  fi
  printf '%s %s %s\n' "$(wc -c < "$file" | tr -d ' ')" "${sum:--}" "$file"
done
