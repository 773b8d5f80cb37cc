# What else is worth knowing before ranks start. Nothing here changes anything.
say clock 2 date +%s
if [ "$(uname -s)" = Darwin ]; then
  say thunderbolt 8 system_profiler SPThunderboltDataType -json
  say hardware_ports 4 networksetup -listallhardwareports
  say rdma_ctl 3 rdma_ctl status
  say ibv_devices 3 ibv_devices
  say ibv_devinfo 4 ibv_devinfo -v
  say firewall 3 /usr/libexec/ApplicationFirewall/socketfilterfw --getglobalstate
  say pmset 3 pmset -g
  say assertions 3 pmset -g assertions
  say netstat_routes 3 netstat -rn -f inet
  say lsof 4 lsof -nP -iTCP -sTCP:LISTEN
  say netstat_listen 3 netstat -an -p tcp
else
  say ip_route 3 ip -4 route show
  say net_tcp 2 cat /proc/net/tcp /proc/net/tcp6
  say ss 3 ss -Hltnp
  say ibv_devices 3 ibv_devices
  say ibv_devinfo 4 ibv_devinfo -v
  say firewall 3 firewall-cmd --state
fi
say programs 8 programs
# The brackets keep this script itself, which is a command line too, out of the list.
say engines 3 sh -c 'ps -axo pid=,ppid=,rss=,command= | grep -E "[v]llm|[m]lx_lm|[m]lx\.launch|[o]mlx|[e]xo( |$)|[o]llama (serve|runner)|[l]lama-server" | cut -c1-300'
say disk 3 df -Pk "$HOME"
say jackalope 3 "${JACKALOPE_HOME:-$HOME/.jackalope}/current/bin/jackalope" --version
say mlx 2 sh -c 'grep -hE "define MLX_VERSION_(MAJOR|MINOR|PATCH) " "${JACKALOPE_HOME:-$HOME/.jackalope}"/current/lib/jackalope/mlx/include/mlx/version.h 2>/dev/null || true'
