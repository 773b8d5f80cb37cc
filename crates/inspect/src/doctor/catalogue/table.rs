//! The table itself. An entry's code is its name in lowercase with hyphens: `SSH_REFUSED` has the
//! code `ssh-refused`.

use super::{Entry, Severity, kebab_case};

/// Defines every entry as a static, and the groups of entries with their headings.
macro_rules! catalogue {
    ($($heading:literal {
        $($name:ident: $severity:ident, $title:literal {
            explain: $explain:literal,
            type_this: [$($line:literal),* $(,)?],
            $(signs: [$($sign:literal),* $(,)?],)?
        })*
    })*) => {
        $($(
            #[doc = concat!("The entry “", $title, "”.")]
            pub static $name: Entry = Entry {
                code: {
                    const CODE: [u8; stringify!($name).len()] = kebab_case(stringify!($name));
                    match str::from_utf8(&CODE) {
                        Ok(code) => code,
                        Err(_) => panic!("identifiers are UTF-8"),
                    }
                },
                severity: Severity::$severity,
                title: $title,
                explain: $explain,
                type_this: &[$($line),*],
                signs: &[$($($sign),*)?],
            };
        )*)*

        /// The groups and their headings, in the order of the documentation.
        pub(super) static GROUPS: &[(&str, &[&Entry])] = &[$(($heading, &[$(&$name),*])),*];
    };
}

catalogue! {
    "Reaching the machines" {
        SSH_MISSING: Error, "no ssh on this machine" {
            explain: "Other machines are reached through the `ssh` of this one, and it cannot be started.",
            type_this: [
                "install OpenSSH's client (`sudo apt install openssh-client`), or name yours: `--ssh /path/to/ssh`",
            ],
        }
        SSH_UNKNOWN_NAME: Error, "the machine's name cannot be resolved" {
            explain: "The name is neither in ~/.ssh/config nor known to the network. Names that end in .local are announced by the machine itself, and not while it sleeps.",
            type_this: [
                "ping {node}",
                "or write its address instead of its name",
                "or add to ~/.ssh/config: `Host {node}` and below it `HostName 10.0.0.2`",
            ],
            signs: ["Could not resolve hostname", "nodename nor servname"],
        }
        SSH_HOST_KEY: Error, "its host key is not trusted" {
            explain: "This machine has never confirmed the other's key, or the key has changed since. Check the key before you accept it; Jackalope does not accept it for you.",
            type_this: [
                "ssh {node} true",
                "if the machine was installed anew: `ssh-keygen -R {node}`, then the same again",
            ],
            signs: ["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"],
        }
        SSH_REFUSED: Error, "it does not accept our key" {
            explain: "The machine asks for a password or refuses every key. Ranks are started without anyone at the keyboard, so a key is needed.",
            type_this: [
                "ssh-keygen -t ed25519   (if you have no key yet)",
                "ssh-copy-id {node}",
                "ssh -o BatchMode=yes {node} true",
            ],
            signs: ["Permission denied (publickey", "Too many authentication failures"],
        }
        SSH_NO_SERVER: Error, "remote login is switched off" {
            explain: "The machine can be reached, but nothing listens on its SSH port.",
            type_this: [
                "on {node}: System Settings, General, Sharing, switch on Remote Login (or `sudo systemsetup -setremotelogin on`)",
                "on Linux: `sudo systemctl enable --now ssh`",
            ],
            signs: ["port 22: Connection refused"],
        }
        SSH_NO_ROUTE: Error, "there is no route to the machine" {
            explain: "No network of this machine leads there: a cable is disconnected, an address was lost at a reboot, or the machines are in different networks.",
            type_this: [
                "ping {node}",
                "jackalope autoconfig --hosts {node},... --dry-run   (addresses of Thunderbolt cables are lost at a reboot)",
            ],
        }
        LOCAL_NETWORK_DENIED: Error, "macOS denies this program the local network" {
            explain: "`ping` gets through, other programs see `No route to host` (errno 65): macOS reports this to a program that lacks the Local Network permission. Apple's own programs, such as `ping`, are exempt.",
            type_this: [
                "System Settings, Privacy & Security, Local Network: switch your terminal (and jackalope) off and on again",
                "then restart the terminal",
                "over SSH the permission belongs to the program that started the session: log in at the screen once",
            ],
        }
        SSH_TIMEOUT: Error, "the machine does not answer" {
            explain: "No answer arrived in time: the machine sleeps or is switched off, no machine has the address, or a firewall drops the packets.",
            type_this: [
                "ping {node}",
                "wake it up, then on {node}: `sudo pmset -a sleep 0`",
                "ssh -v {node} true",
            ],
            signs: ["Operation timed out", "Connection timed out"],
        }
        SSH_BROKEN: Error, "the connection broke" {
            explain: "`ssh` failed with an unknown message.",
            type_this: ["ssh -v {node} true"],
            signs: [
                "Connection closed by",
                "Connection reset by peer",
                "kex_exchange_identification",
            ],
        }
        PING_SILENT: Error, "an address of another machine does not answer" {
            explain: "Ranks communicate over these addresses. A cable is disconnected, no machine has the address, a firewall in stealth mode drops pings, or a route leads elsewhere.",
            type_this: [
                "on {node}: `ping -c 3 {ip}`",
                "on {node}: `route -n get {ip}` (macOS) or `ip route get {ip}` (Linux) shows the interface it takes",
                "jackalope autoconfig --hosts {node},{peer} --dry-run",
            ],
            signs: ["P2P: timeout"],
        }
        PING_SLOW: Warn, "another machine answers slowly" {
            explain: "Each token crosses the network some hundred times: a millisecond there is a tenth of a second here. Over a cable the mean is well below a millisecond; over Wi-Fi it is not.",
            type_this: [
                "connect {node} and {peer} by a cable",
                "jackalope autoconfig --hosts {node},{peer} --dry-run",
            ],
        }
        LINK_BROKEN: Error, "two machines of the cluster do not reach each other" {
            explain: "The coordinator reaches both, but their ranks cannot connect to each other. The server continues with the machines that reach each other, and uses the others again once the link works.",
            type_this: [
                "look at the cable or the switch between the two machines",
                "on one of them: `ping` the address of the other that is named here",
                "look at their firewalls: they must allow the data ports (docs/hosts.md)",
            ],
            signs: [
                "is broken (for ",
                "its ranks cannot connect, though other programs there answer",
            ],
        }
        MACHINE_KEY_CHANGED: Error, "the key of a machine has changed" {
            explain: "Every machine has a key in its ~/.jackalope/identity. This machine stored it at `bootstrap` or `trust accept`, and sends nothing to a machine that proves another key. The other machine was reinstalled, its folder was deleted, or another machine answers at its address.",
            type_this: [
                "on that machine: `jackalope trust list` prints its key in the first line",
                "if it is the new key in the message: `jackalope trust accept HOST`   (or `jackalope bootstrap HOST` over SSH)",
                "if it is not: `jackalope trust revoke HOST`, and find out which machine answers at its address",
            ],
            signs: ["it was installed anew, or another machine answers in its name"],
        }
        MACHINE_NOT_TRUSTED: Error, "a machine is not trusted" {
            explain: "No key is stored for it, or its key was revoked with `jackalope trust revoke`. A server that used it closes its connections at once and continues without it.",
            type_this: [
                "jackalope trust list",
                "if it is to be used: compare the key with `jackalope trust list` there, then `jackalope trust accept HOST`",
            ],
            signs: [
                "its machine is not trusted any more",
                "the machine is not trusted any more",
                "is not known here",
            ],
        }
        TICKET_REFUSED: Warn, "a rank's ticket is not accepted" {
            explain: "Each rank proves a ticket that its server issued for this rank on this machine. Tickets of an earlier server, of a replaced rank, or of a machine whose key was revoked or has changed are refused; such a rank ends by itself when its lease expires.",
            type_this: [
                "jackalope status   (on the coordinator: are all ranks there?)",
                "jackalope trust list   (on the coordinator: is the machine's key the one that `jackalope trust list` shows there?)",
            ],
            signs: ["the ticket is not accepted"],
        }
        TOOL_STUCK: Warn, "a system tool does not end" {
            explain: "It was killed after its time limit. A tool that hangs often indicates a device in a bad state.",
            type_this: ["on {node}: run `{tool}` by hand; if it hangs, restart the machine"],
        }
        TOOL_MISSING: Note, "a system tool is missing" {
            explain: "The information from this tool is unknown; nothing else depends on it.",
            type_this: ["on {node}: `command -v {tool}`"],
        }
    }
    "RDMA and Thunderbolt" {
        RDMA_NOT_A_MAC: Error, "JACCL needs Macs" {
            explain: "RDMA over Thunderbolt is a part of macOS; other systems use TCP.",
            type_this: ["use `--backend tcp`"],
        }
        MACOS_TOO_OLD: Error, "this macOS has no RDMA" {
            explain: "RDMA over Thunderbolt came with macOS 26.2.",
            type_this: [
                "on {node}: `softwareupdate --list`, then install macOS 26.3 or later",
                "until then use `--backend tcp`",
            ],
        }
        MACOS_SMALL_FRAMES: Warn, "macOS before 26.3 sends RDMA in frames of 4 KB" {
            explain: "Large sums are then cut into thousands of pieces: slow, and known to fail with errno 12 after some steps.",
            type_this: [
                "on {node}: install macOS 26.3 or later",
                "until then `--backend tcp` is the safe choice",
            ],
        }
        THUNDERBOLT_4: Error, "Thunderbolt 4 has no RDMA" {
            explain: "RDMA needs Thunderbolt 5: an M4 Pro or Max, an M3 Ultra, an M5 Pro or Max. `rdma_ctl enable` succeeds on other Macs too but changes nothing: the settings are not wrong, and Recovery will not help.",
            type_this: ["use `--backend tcp` over the same cable: 40 Gbit/s is plenty for it"],
        }
        SLOW_LINK: Warn, "a Thunderbolt 5 port runs at 40 Gbit/s" {
            explain: "Both ends can do 80: the cable between them cannot.",
            type_this: [
                "replace the cable in port {receptacle} of {node} by one marked with a 5 (at most 1 m without electronics)",
            ],
        }
        RDMA_DISABLED: Error, "RDMA is switched off" {
            explain: "It can be switched on in Recovery only, once per Mac. Ports become active when both ends have it on.",
            type_this: [
                "on {node}: shut down, then hold the power button until `Loading startup options` appears",
                "choose Options, Continue, then Utilities, Terminal",
                "rdma_ctl enable",
                "restart, then `rdma_ctl status`",
            ],
            signs: ["does not seem to have RDMA enabled"],
        }
        RDMA_UNKNOWN: Warn, "`rdma_ctl status` gives no answer" {
            explain: "Its output is neither enabled nor disabled.",
            type_this: ["on {node}: `rdma_ctl status`"],
        }
        RDMA_NO_DEVICES: Error, "there are no RDMA devices" {
            explain: "RDMA is on, but `ibv_devices` lists none. The Mac was not restarted since then, or it has Thunderbolt 4 or older.",
            type_this: [
                "restart {node}, then `ibv_devices`",
                "use `--backend tcp` if this does not help",
            ],
            signs: ["No IB devices found"],
        }
        RDMA_DEVICE_MISSING: Error, "the hostfile names a device that does not exist" {
            explain: "Devices are named after the network interface of their port, which depends on the Mac's model and on the port. Moving a cable to another port changes the device.",
            type_this: [
                "on {node}: `ibv_devices`",
                "jackalope autoconfig --hosts {hosts} --backend jaccl --out hosts.json",
            ],
            signs: ["[jaccl] Could not find device", "[jaccl] Could not open device"],
        }
        RDMA_PORT_DOWN: Error, "an RDMA port is down" {
            explain: "A port is active only while a cable leads to another Mac that is awake and has RDMA on too. Sleep takes ports down, and some come back only when the cable is connected again.",
            type_this: [
                "on the Mac at the other end: `rdma_ctl status`, and wake its display",
                "disconnect the cable of {interface} and connect it again",
                "on {node}: `ibv_devinfo -d {device}` should say PORT_ACTIVE",
                "use another port or cable; last, restart both Macs",
            ],
            signs: ["PORT_DOWN"],
        }
        RDMA_WRONG_CABLE: Error, "a device leads to another machine than the hostfile says" {
            explain: "In the hostfile, entry j of a host is its device for host j. The cable of this device ends at another machine, so both ends would wait for each other.",
            type_this: ["jackalope autoconfig --hosts {hosts} --backend jaccl --out hosts.json"],
        }
        RDMA_NO_IPV4_GID: Error, "an RDMA port has no IPv4 address" {
            explain: "JACCL identifies a port by its IPv4 address (an IPv4-mapped GID), which exists only while the network interface of the same port has one. The address is lost at a reboot, and for minutes after a cable is connected.",
            type_this: [
                "jackalope autoconfig --hosts {hosts} --dry-run   (shows the addresses it would assign)",
                "or by hand on {node}: `sudo ifconfig {interface} inet 10.254.0.1 netmask 255.255.255.252 up`",
            ],
            signs: ["No IPv4-mapped GID"],
        }
        STUDIO_PORT: Error, "this port of a Mac Studio has no RDMA" {
            explain: "The Thunderbolt port next to Ethernet (en2) carries data and displays but no RDMA.",
            type_this: [
                "move the cable to another port of {node}, then `jackalope autoconfig` again",
            ],
        }
    }
    "Addresses and networks" {
        ADDRESS_LOST: Error, "an address of the hostfile is not on the machine" {
            explain: "Addresses set with `ifconfig` are lost at a reboot; the router may change those of Wi-Fi and Ethernet at any time.",
            type_this: [
                "jackalope autoconfig --hosts {hosts} --out hosts.json",
                "on {node}: `ifconfig | grep 'inet '` shows what it has",
            ],
            signs: ["Can't assign requested address", "Cannot assign requested address"],
        }
        NO_COMMON_NETWORK: Error, "two machines of the hostfile share no network" {
            explain: "Neither has an address in a network of the other, so their ranks cannot find each other directly.",
            type_this: [
                "jackalope autoconfig --hosts {node},{peer} --dry-run",
                "jackalope autoconfig --hosts {node},{peer} --over ethernet",
            ],
        }
        GATEWAY_OVERLAP: Error, "a cable's network covers the route to the internet" {
            explain: "An address on a Thunderbolt port is in the network of the router. Packets for the router are sent over the cable, and the machine loses the internet.",
            type_this: [
                "on {node}: `sudo ifconfig {interface} inet {ip} delete`",
                "on {node}: `sudo arp -ad`, then `ping -c 3 {gateway}`",
                "jackalope autoconfig --hosts {hosts}   (assigns addresses without conflicts)",
            ],
        }
        HOME_NETWORK: Warn, "a cable's network is one that home routers use" {
            explain: "192.168.0.x and 192.168.1.x work until a machine joins a network with the same numbers, and then it loses one of the two.",
            type_this: [
                "jackalope autoconfig --hosts {hosts}   (assigns networks in 10.254.0.0 with two addresses each)",
            ],
        }
        WIDE_NETWORK: Warn, "a cable's network is larger than the cable" {
            explain: "Two cables with a /24 each easily have the same network, and then all packets use the first cable. A network of two addresses (/30) identifies one cable.",
            type_this: [
                "on {node}: `sudo ifconfig {interface} inet {ip} netmask 255.255.255.252`, the same at the other end",
                "or jackalope autoconfig --hosts {hosts}",
            ],
        }
        BRIDGE_LOOP: Error, "Thunderbolt cables form a loop through bridges" {
            explain: "macOS puts all Thunderbolt ports into one bridge. If cables form a ring through several bridges, or two cables connect the same two, every broadcast circulates for ever: the Macs become slow and the network fails.",
            type_this: [
                "on {node}: `sudo ifconfig {bridge} deletem {interface}`   (undo: `sudo ifconfig {bridge} addm {interface}`)",
                "or jackalope autoconfig --hosts {hosts}   (removes every port with a cable from its bridge)",
            ],
        }
        BRIDGE_MEMBER: Warn, "a port that the hostfile uses is in a bridge" {
            explain: "Its packets then go through the bridge's address, and RDMA may report errno 22. Only this port has to be removed; the bridge remains for the others.",
            type_this: [
                "on {node}: `sudo ifconfig {bridge} deletem {interface}`   (undo: `sudo ifconfig {bridge} addm {interface}`)",
            ],
        }
        DEFAULT_OVER_CABLE: Warn, "the route to the internet leads through Thunderbolt" {
            explain: "macOS uses the first network service of its list for the internet, and Thunderbolt comes before Ethernet or Wi-Fi.",
            type_this: [
                "on {node}: System Settings, Network, ..., Set Service Order: Thunderbolt last",
            ],
        }
        FIREWALL_ON: Warn, "a firewall is active" {
            explain: "It blocks connections to unknown programs and asks on the screen, where no user may see it.",
            type_this: [
                "on {node}: `sudo /usr/libexec/ApplicationFirewall/socketfilterfw --add ~/.jackalope/current/bin/jackalope-rank --unblockapp ~/.jackalope/current/bin/jackalope-rank`",
                "on Linux: `sudo firewall-cmd --zone=trusted --add-interface={interface}`",
            ],
        }
    }
    "The machines themselves" {
        OS_VERSIONS_DIFFER: Warn, "the machines run different versions of macOS" {
            explain: "RDMA drivers of different versions are known to be incompatible.",
            type_this: ["update all to the newest version: `softwareupdate --list`"],
        }
        VERSIONS_DIFFER: Error, "the machines have different versions of jackalope" {
            explain: "Ranks of different versions refuse each other when they meet.",
            type_this: ["install the same version on all machines, then `jackalope doctor` again"],
            signs: ["version mismatch"],
        }
        MLX_VERSIONS_DIFFER: Error, "the machines have different versions of MLX" {
            explain: "MLX's own transports do not check versions: different versions hang or compute wrong results.",
            type_this: [
                "install the same version of jackalope on all machines: each brings its MLX",
            ],
        }
        CLOCK_SKEW: Warn, "a clock is wrong" {
            explain: "Logs of several machines cannot be compared, and certificates may be rejected.",
            type_this: [
                "on {node} (macOS): `sudo sntp -sS time.apple.com`",
                "on {node} (Linux): `sudo timedatectl set-ntp true`",
            ],
        }
        WIRED_MEMORY: Warn, "memory is wired although no model runs" {
            explain: "A process that computed on the GPU and was killed with SIGKILL can leave its memory wired until the Mac is restarted.",
            type_this: [
                "on {node}: `sudo vm_stat; ps aux -m | head`",
                "if nothing there explains it: `sudo shutdown -r now`",
                "end ranks with SIGTERM, never with `kill -9`",
            ],
        }
        STALE_PROCESS: Warn, "a program that computes models runs already" {
            explain: "It holds memory, and an RDMA device serves only one process. It may be left over from a crash.",
            type_this: [
                "on {node}: `ps -fp {pid}` says what it is",
                "if it is not needed: `kill {pid}`   (not -9: memory could stay wired)",
            ],
        }
        SERVER_NOT_READY: Warn, "a server answers, but cannot compute" {
            explain: "Its model is loading, or it has lost ranks and forms its group again.",
            type_this: [
                "on {node}: `JACKALOPE_HOME={home} jackalope status` says what it waits for",
            ],
        }
        SERVER_SILENT: Warn, "a server does not answer" {
            explain: "Its process runs, but its HTTP port did not answer within two seconds.",
            type_this: [
                "on {node}: `JACKALOPE_HOME={home} jackalope logs` may say why",
                "on {node}: `JACKALOPE_HOME={home} jackalope stop`, or `kill {pid}` if that finds no server",
            ],
        }
        PROGRAM_STOPPED: Warn, "a program was stopped by a signal" {
            explain: "Ctrl-Z in a terminal or SIGSTOP stopped it; it holds its memory and its ports, and does not answer.",
            type_this: ["on {node}: `kill -CONT {pid}` continues it"],
        }
        PORT_TAKEN: Warn, "a port that clusters use is taken" {
            explain: "Another program that listens there will fail with `Address already in use`.",
            type_this: [
                "on {node}: `sudo lsof -nP -iTCP:{port} -sTCP:LISTEN` names the program",
                "end it, or use another port: `--port`",
            ],
        }
        MEMORY_LOW: Warn, "little memory is free" {
            explain: "Weights and caches must fit in the free memory; else the system swaps or kills processes.",
            type_this: [
                "on {node}: close programs; `ps aux -m | head` (macOS) or `ps aux --sort=-rss | head` (Linux) names the largest",
                "give this machine a smaller share: `--share`",
            ],
        }
        DISK_LOW: Warn, "the disk is nearly full" {
            explain: "Models, logs and swap need space; macOS becomes unreliable with less than some gigabytes.",
            type_this: [
                "on {node}: `du -sh ~/.cache/huggingface ~/.jackalope ~/Library/Caches 2>/dev/null`",
            ],
            signs: ["No space left on device", "errno 28"],
        }
        MODEL_MISSING: Error, "the model is not on this machine" {
            explain: "Every rank reads its part from a copy on its own machine. The copies may be in different folders.",
            type_this: ["jackalope models sync {model} --hosts {node}"],
            signs: ["config.json: No such file"],
        }
        MODEL_DIFFERS: Error, "the model's files differ between machines" {
            explain: "Different files mean another model, another quantisation, or an interrupted or damaged copy. Ranks would compute inconsistent results, so `serve` compares the hashes of all content and refuses. Without `--hash`, `doctor` compares only names and sizes.",
            type_this: [
                "jackalope models check {model} --hash --hosts {node}   (compares hashes, and says which files differ)",
                "jackalope models sync {model} --hosts {node}",
            ],
            signs: ["differs from the model that is served", "a different table of tensors"],
        }
        SLEEP_ALLOWED: Warn, "the machine may fall asleep" {
            explain: "A Mac that sleeps drops out of the cluster, and its RDMA ports go down.",
            type_this: [
                "on {node}: `sudo pmset -a sleep 0 disksleep 0`   (undo: `sudo pmset -a sleep 1 disksleep 10`)",
                "or while it computes: `caffeinate -dis`",
            ],
        }
        DISPLAY_SLEEP: Warn, "the display may fall asleep" {
            explain: "RDMA ports were seen to go down when the display sleeps.",
            type_this: [
                "on {node}: `sudo pmset -a displaysleep 0`   (undo: `sudo pmset -a displaysleep 10`)",
                "or while it computes: `caffeinate -d`",
            ],
        }
    }
    "Errors in logs" {
        RDMA_BUSY: Error, "the RDMA device is busy (errno 16)" {
            explain: "A device has about ten queue pairs, enough for one process. Another process, often left over from a crash, still holds them, and the driver needs half a minute to release them.",
            type_this: [
                "on every machine: `pgrep -fl 'jackalope-rank|mlx|python'`, then `kill` left-over processes",
                "wait 30 seconds and start again",
                "if it stays busy: restart the machines",
            ],
            signs: ["errno 16", "EBUSY", "Resource busy", "Device or resource busy"],
        }
        PROTECTION_DOMAIN: Error, "no protection domain" {
            explain: "The device cannot allocate one: its port is down, RDMA is off, or crashed processes have used up its eleven protection domains.",
            type_this: [
                "jackalope doctor --hosts hosts.json   (shows ports and RDMA)",
                "end the processes that hold the device: `pgrep -fl 'jackalope-rank|mlx'`",
                "if this does not help: restart that machine",
            ],
            signs: ["Couldn't allocate protection domain", "Could not allocate protection domain"],
        }
        RTR_ERRNO_22: Error, "the other end's address is refused (RTR, errno 22)" {
            explain: "The queue pair got an invalid address: the port has no IPv4 address, it is in a bridge, or the address has just changed.",
            type_this: [
                "jackalope doctor --hosts hosts.json   (look for rdma-no-ipv4-gid and bridge-member)",
                "jackalope autoconfig --hosts ... --dry-run",
            ],
            signs: [
                "RTR failed with errno 22",
                "RTS failed with errno 22",
                "INIT failed with errno 22",
            ],
        }
        RTR_ERRNO_60: Error, "the other end cannot be reached on this cable (RTR, errno 60)" {
            explain: "One side's port is down, or the devices of the hostfile are not the two ends of one cable.",
            type_this: [
                "jackalope doctor --hosts hosts.json   (look for rdma-port-down and rdma-wrong-cable)",
                "disconnect the cable and connect it again",
            ],
            signs: ["RTR failed with errno 60"],
        }
        RTR_ERRNO_96: Error, "no queue pair is left (RTR, errno 96)" {
            explain: "Queue pairs and protection domains of crashed processes are used up, or the table of addresses was damaged by taking the interface down and up again. Only a restart clears both.",
            type_this: [
                "end all ranks with SIGTERM, then restart the machine that reports this",
                "jackalope doctor --hosts hosts.json",
            ],
            signs: ["errno 96"],
        }
        RDMA_NO_MEMORY: Error, "the RDMA device is out of memory (errno 12)" {
            explain: "Before macOS 26.3 frames have 4 KB, and a large sum needs more of them than the device queues.",
            type_this: [
                "install macOS 26.3 or later on all machines",
                "until then use `--backend tcp`",
            ],
            signs: ["errno 12", "errno -12", "ENOMEM", "Register memory region failed"],
        }
        CONNECTION_STALE: Error, "a stale connection of an earlier run is used (errno 57)" {
            explain: "The other side is gone, and this one still holds the socket.",
            type_this: [
                "end the ranks on all machines, then start again",
                "jackalope doctor --hosts hosts.json   (names left-over processes)",
            ],
            signs: ["errno 57", "errno=57", "error: 57", "Socket is not connected"],
        }
        OTHER_RANK_FAILED: Error, "another rank failed first" {
            explain: "A rank that failed closed the side channel; the error number is unrelated. The cause is in the log of that rank.",
            type_this: [
                "read the last lines of every other rank's log: `jackalope doctor --log FILE`",
            ],
            signs: ["Recv failed with errno=2", "[ring] Receiving from socket"],
        }
        CONNECT_TIMEOUT: Error, "a rank could not connect to another" {
            explain: "Rank 0 was not running yet, its address is wrong or on another network, a firewall is active, or macOS denies the Local Network permission.",
            type_this: [
                "jackalope doctor --hosts hosts.json",
                "on the worker: `ping -c 3 RANK0_ADDRESS`",
                "on the machine of rank 0: `lsof -nP -iTCP:PORT -sTCP:LISTEN` (do not try the port with `nc`: JACCL treats every connection as a rank)",
            ],
            signs: [
                "Couldn't connect (error",
                "errno 60",
                "errno=60",
                "[ring] Couldn't connect",
                "connect() failed after",
            ],
        }
        NO_ROUTE: Error, "no route to a machine (errno 65)" {
            explain: "Either there is none (cable disconnected, address lost), or macOS denies the Local Network permission: then `ping` works and only this program fails.",
            type_this: [
                "ping -c 3 THAT_ADDRESS",
                "if ping works: System Settings, Privacy & Security, Local Network: switch your terminal off and on",
                "if it does not: jackalope autoconfig --hosts ... --dry-run",
            ],
            signs: ["No route to host", "errno 65", "error: 65", "errno 113"],
        }
        BATCH_DESYNC: Error, "ranks compute different batches" {
            explain: "The ranks of a server that plan independently have diverged. Jackalope's ranks get every step from one plan, so this message comes from another program.",
            type_this: [
                "keep the logs of all ranks for a report",
                "restart the whole server, not one rank",
            ],
            signs: ["BATCH DESYNC"],
        }
        ADDRESS_IN_USE: Error, "a port is already taken" {
            explain: "Another program listens there, often an earlier run of the same one.",
            type_this: [
                "sudo lsof -nP -iTCP -sTCP:LISTEN | grep PORT",
                "kill it, or use another port: `--port`",
            ],
            signs: ["Address already in use", "errno 48", "errno 98", "EADDRINUSE"],
        }
        OUT_OF_MEMORY: Error, "the system was out of memory" {
            explain: "The kernel killed a process, or the GPU could not allocate memory. Weights, caches and the activations of one step must fit together.",
            type_this: [
                "jackalope doctor   (shows free and wired memory)",
                "less context or a smaller cache: `--context`, `--kv-mib`",
                "fewer tokens per step: `--step-tokens 256`, or a smaller share for this machine: `--share`",
            ],
            signs: [
                "Killed: 9",
                "signal 9",
                "SIGKILL",
                "out of memory",
                "OutOfMemory",
                "oom-kill",
                "Attempting to allocate",
                "Insufficient Memory",
            ],
        }
        GPU_TIMEOUT: Error, "the GPU's watchdog ended a computation" {
            explain: "A command buffer waited for more than some five seconds: for a rank that was late, or that is gone.",
            type_this: [
                "look for the rank that was late: `jackalope doctor --log FILE` for each",
                "do not set MLX_METAL_FAST_SYNCH: it turns this into a hang until reboot",
            ],
            signs: [
                "Caused GPU Timeout",
                "CallbackErrorTimeout",
                "kIOGPUCommandBufferCallbackErrorTimeout",
            ],
        }
        RING_LIMITS: Error, "MLX's ring cannot do this" {
            explain: "The ring supports sums, gathers, and sending to neighbours, but neither scattering nor subgroups.",
            type_this: ["use `--backend tcp` or `--backend jaccl`"],
            signs: ["[ring] sum_scatter not supported", "[ring] Group split not supported"],
        }
        NO_BACKEND: Error, "MLX found no transport" {
            explain: "The requested transport is not built into this libmlx, or its hostfile or devices were not given.",
            type_this: [
                "jackalope link --backend ring,jaccl,nccl   (shows which ones this machine's libmlx has)",
                "use `--backend tcp`, which needs no settings",
            ],
            signs: [
                "Couldn't initialize any backend",
                "You need to provide via environment variables a rank",
                "The only valid values for backend are",
            ],
        }
        DEVICE_FILE: Error, "the file of RDMA devices does not fit the ranks" {
            explain: "It has one row for each rank and in it one entry for each other rank. A copy under /tmp is lost at a reboot.",
            type_this: ["jackalope autoconfig --hosts ... --backend jaccl --out hosts.json"],
            signs: [
                "The device file should",
                "number of RDMA devices does not match hosts",
                "RDMA device of self should be null",
                "no RDMA device is listed for",
                "mlx_ibv_devices.json",
            ],
        }
        NO_PIPELINE: Error, "the model cannot be split into a pipeline" {
            explain: "mlx-lm has pipelines for few architectures. Jackalope can split every architecture that it supports, by layers or within layers.",
            type_this: ["jackalope serve --model DIR --ranks N"],
            signs: ["does not support pipeline parallelism"],
        }
    }
}
