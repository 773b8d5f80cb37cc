# Each tool is run by `say NAME SECONDS COMMAND...`, which prints what it says between markers and
# ends it after so many seconds: macOS has no `timeout`.
LC_ALL=C; export LC_ALL
PATH="$PATH:/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/bin:/opt/homebrew/bin"; export PATH
say() {
  printf '\n@@section %s\n' "$1"
  limit=$2; shift 2
  command -v "$1" >/dev/null 2>&1 || { printf '\n@@missing %s\n' "$1"; return 0; }
  "$@" </dev/null 2>&1 &
  tool=$!
  ( sleep "$limit" & nap=$!; trap 'kill $nap; exit' TERM; wait $nap; kill -9 $tool ) \
    </dev/null >/dev/null 2>&1 &
  guard=$!
  wait $tool 2>/dev/null
  printf '\n@@status %s\n' "$?"
  kill $guard 2>/dev/null
  return 0
}
