# Reports our own programs on this machine, each queried before it is judged: which record names it,
# whether its HTTP port answers, whether a rank is connected to its coordinator. One block of lines
# per program.
programs() {
  set -f
  if [ "$(uname -s)" = Darwin ]; then sockets=$(lsof -nP -iTCP 2>/dev/null); else sockets=$(ss -Htanp 2>/dev/null); fi
  ps -axo pid=,ppid=,rss=,stat=,command= | while read -r pid parent rss state program words; do
    kind=
    case "${program##*/}" in
      jackalope-rank) kind=rank ;;
      jackalope) for word in $words; do case "$word" in -*) ;; *) kind=$word; break ;; esac; done ;;
    esac
    case "$kind" in serve|agent|rank) ;; *) continue ;; esac
    echo "@program $kind $pid $parent $rss $state"
    case "$kind" in
      rank) coordinator_of "$pid" "$words" ;;
      *) record_of "$kind" "$pid" ;;
    esac
  done
}
# Prints the home of a server or an agent, its record if that names this process, and what its HTTP
# port answers.
record_of() {
  if [ -r "/proc/$2/environ" ]; then environment=$(tr '\0' '\n' < "/proc/$2/environ")
  else environment=$(ps eww -o command= -p "$2" | tr ' ' '\n'); fi
  home=$(printf '%s\n' "$environment" | sed -n 's/^JACKALOPE_HOME=//p' | tail -n 1)
  [ -n "$home" ] || home=$(printf '%s\n' "$environment" | sed -n 's/^HOME=//p' | tail -n 1)/.jackalope
  echo "home $home"
  if [ -r "/proc/$2/stat" ]; then began=$(sed 's/.*) //' "/proc/$2/stat" | cut -d' ' -f20)
  else began=$(ps -o lstart= -p "$2"); fi
  echo "began $began"
  record=$(tr -d '\n' < "$home/$1.json" 2>/dev/null | sed 's/"api_key":"[^"]*",*//')
  case "$record" in *"\"pid\":$2,"*) echo "record $record" ;; *) record= ;; esac
  [ "$1" = serve ] || return 0
  url=$(printf '%s' "$record" | sed -n 's/.*"url":"\([^"]*\)".*/\1/p')
  if [ -n "$url" ]; then ask "$url"; return 0; fi
  for port in $(ports_of "$2"); do ask "http://$port"; done
}
# Prints where a process listens, as `address:port`.
ports_of() {
  if [ "$(uname -s)" = Darwin ]; then
    printf '%s\n' "$sockets" | awk -v p="$1" '$2 == p && $NF == "(LISTEN)" { print $(NF - 1) }'
  else
    printf '%s\n' "$sockets" | grep -F "pid=$1," | awk '$1 == "LISTEN" { print $4 }'
  fi
}
# Prints whether a server is alive and ready: HTTP statuses, 000 for no answer.
ask() {
  url=$(printf '%s' "$1" | sed 's|//0.0.0.0:|//127.0.0.1:|; s|//\[::\]:|//[::1]:|; s|//\*:|//127.0.0.1:|')
  command -v curl >/dev/null 2>&1 || { echo "answer $url - -"; return 0; }
  live=$(curl -gsk -m 2 -o /dev/null -w '%{http_code}' "$url/health/live" </dev/null)
  ready=000
  [ "$live" = 000 ] || ready=$(curl -gsk -m 2 -o /dev/null -w '%{http_code}' "$url/health/ready" </dev/null)
  echo "answer $url $live $ready"
}
# Prints whether a rank has a connection to the address after `--control`.
coordinator_of() {
  control=$(printf '%s' "$2" | sed -n 's/.*--control[ =]\([^ ]*\).*/\1/p')
  [ -n "$control" ] && [ -n "$sockets" ] || return 0
  if [ "$(uname -s)" = Darwin ]; then
    own=$(printf '%s\n' "$sockets" | awk -v p="$1" '$2 == p')
  else
    own=$(printf '%s\n' "$sockets" | grep -F "pid=$1,")
  fi
  [ -n "$own" ] || return 0
  port=${control##*:}
  if printf '%s\n' "$own" | grep -E "ESTAB" | grep -qE ":$port( |$)"; then echo "coordinator yes"
  else echo "coordinator no"; fi
}
