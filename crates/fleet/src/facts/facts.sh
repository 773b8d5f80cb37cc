# What a machine is. Tools of one system are simply missing on the other.
say uname 2 uname -srm
say hostname 2 hostname
if [ "$(uname -s)" = Darwin ]; then
  say sw_vers 3 sw_vers
  say sysctl 3 sysctl hw.model machdep.cpu.brand_string hw.memsize hw.logicalcpu iogpu.wired_limit_mb vm.loadavg
  say therm 3 pmset -g therm
  say vm_stat 3 vm_stat
  say ifconfig 3 ifconfig -a
else
  say loadavg 2 cat /proc/loadavg
  say zones 2 sh -c 'cat /sys/class/thermal/thermal_zone*/temp 2>/dev/null'
  say nvidia 3 nvidia-smi --query-gpu=name --format=csv,noheader
  say meminfo 2 cat /proc/meminfo
  say cpuinfo 2 cat /proc/cpuinfo
  say ip_addr 3 ip -o addr show up
  say fib_trie 2 cat /proc/net/fib_trie
  say net_route 2 cat /proc/net/route
  say net_speed 2 sh -c 'for i in /sys/class/net/*; do echo "${i##*/} $(cat "$i/speed" 2>/dev/null)"; done'
fi
