//! Problems with SSH and with reaching a machine.

use super::{Entry, entries};
use crate::doctor::Severity;

entries! { REACH:
    /// There is no `ssh` on this machine.
    SSH_MISSING = Entry {
        code: "ssh-missing",
        severity: Severity::Error,
        title: "no ssh on this machine",
        explain: "Other machines are reached through the `ssh` of this one, and it cannot be started.",
        type_this: &["install OpenSSH's client (`sudo apt install openssh-client`), or name yours: `--ssh /path/to/ssh`"],
        signs: &[],
        origin: "TOP-12",
    };
    /// The machine's name cannot be resolved.
    SSH_UNKNOWN_NAME = Entry {
        code: "ssh-unknown-name",
        severity: Severity::Error,
        title: "the machine's name cannot be resolved",
        explain: "The name is neither in ~/.ssh/config nor known to the network. Names that end in .local are announced by the machine itself, and not while it sleeps.",
        type_this: &["ping {node}", "or write its address instead of its name", "or add to ~/.ssh/config: `Host {node}` and below it `HostName 10.0.0.2`"],
        signs: &["Could not resolve hostname", "nodename nor servname"],
        origin: "TOP-12",
    };
    /// The machine's host key is not trusted.
    SSH_HOST_KEY = Entry {
        code: "ssh-host-key",
        severity: Severity::Error,
        title: "its host key is not trusted",
        explain: "This machine has never confirmed the other's key, or the key has changed since. Check the key before you accept it; Jackalope does not accept it for you.",
        type_this: &["ssh {node} true", "if the machine was installed anew: `ssh-keygen -R {node}`, then the same again"],
        signs: &["Host key verification failed", "REMOTE HOST IDENTIFICATION HAS CHANGED"],
        origin: "TOP-12",
    };
    /// The machine asks for a password or rejects our keys.
    SSH_REFUSED = Entry {
        code: "ssh-refused",
        severity: Severity::Error,
        title: "it does not accept our key",
        explain: "The machine asks for a password or refuses every key. Ranks are started without anyone at the keyboard, so a key is needed.",
        type_this: &["ssh-keygen -t ed25519   (if you have no key yet)", "ssh-copy-id {node}", "ssh -o BatchMode=yes {node} true"],
        signs: &["Permission denied (publickey", "Too many authentication failures"],
        origin: "TOP-12",
    };
    /// Nothing listens on the machine's SSH port.
    SSH_NO_SERVER = Entry {
        code: "ssh-no-server",
        severity: Severity::Error,
        title: "remote login is switched off",
        explain: "The machine can be reached, but nothing listens on its SSH port.",
        type_this: &["on {node}: System Settings, General, Sharing, switch on Remote Login (or `sudo systemsetup -setremotelogin on`)", "on Linux: `sudo systemctl enable --now ssh`"],
        signs: &["port 22: Connection refused"],
        origin: "TOP-12",
    };
    /// There is no route to the machine.
    SSH_NO_ROUTE = Entry {
        code: "ssh-no-route",
        severity: Severity::Error,
        title: "there is no route to the machine",
        explain: "No network of this machine leads there: a cable is disconnected, an address was lost at a reboot, or the machines are in different networks.",
        type_this: &["ping {node}", "jackalope autoconfig --hosts {node},... --dry-run   (addresses of Thunderbolt cables are lost at a reboot)"],
        signs: &[],
        origin: "TOP-12 TS-15",
    };
    /// macOS denies this program access to the local network.
    LOCAL_NETWORK_DENIED = Entry {
        code: "local-network-denied",
        severity: Severity::Error,
        title: "macOS denies this program the local network",
        explain: "`ping` gets through, other programs see `No route to host` (errno 65): macOS reports this to a program that lacks the Local Network permission. Apple's own programs, such as `ping`, are exempt.",
        type_this: &["System Settings, Privacy & Security, Local Network: switch your terminal (and jackalope) off and on again", "then restart the terminal", "over SSH the permission belongs to the program that started the session: log in at the screen once"],
        signs: &[],
        origin: "TS-15",
    };
    /// The machine does not answer.
    SSH_TIMEOUT = Entry {
        code: "ssh-timeout",
        severity: Severity::Error,
        title: "the machine does not answer",
        explain: "No answer arrived in time: the machine sleeps or is switched off, no machine has the address, or a firewall drops the packets.",
        type_this: &["ping {node}", "wake it up, then on {node}: `sudo pmset -a sleep 0`", "ssh -v {node} true"],
        signs: &["Operation timed out", "Connection timed out"],
        origin: "TOP-12 TS-15",
    };
    /// The SSH connection broke for another reason.
    SSH_BROKEN = Entry {
        code: "ssh-broken",
        severity: Severity::Error,
        title: "the connection broke",
        explain: "`ssh` failed with an unknown message.",
        type_this: &["ssh -v {node} true"],
        signs: &["Connection closed by", "Connection reset by peer", "kex_exchange_identification"],
        origin: "TOP-12",
    };
    /// A machine gets no answer from another one's address.
    PING_SILENT = Entry {
        code: "ping-silent",
        severity: Severity::Error,
        title: "an address of another machine does not answer",
        explain: "Ranks communicate over these addresses. A cable is disconnected, no machine has the address, a firewall in stealth mode drops pings, or a route leads elsewhere.",
        type_this: &["on {node}: `ping -c 3 {ip}`", "on {node}: `route -n get {ip}` (macOS) or `ip route get {ip}` (Linux) shows the interface it takes", "jackalope autoconfig --hosts {node},{peer} --dry-run"],
        signs: &["P2P: timeout"],
        origin: "TS-15 TS-23",
    };
    /// Another machine answers slowly.
    PING_SLOW = Entry {
        code: "ping-slow",
        severity: Severity::Warn,
        title: "another machine answers slowly",
        explain: "Each token crosses the network some hundred times: a millisecond there is a tenth of a second here. Over a cable the mean is well below a millisecond; over Wi-Fi it is not.",
        type_this: &["connect {node} and {peer} by a cable", "jackalope autoconfig --hosts {node},{peer} --dry-run"],
        signs: &[],
        origin: "TS-01 DI-02",
    };
    /// Two machines cannot connect to each other.
    LINK_BROKEN = Entry {
        code: "link-broken",
        severity: Severity::Error,
        title: "two machines of the cluster do not reach each other",
        explain: "The coordinator reaches both, but their ranks cannot connect to each other. The server continues with the machines that reach each other, and uses the others again once the link works.",
        type_this: &["look at the cable or the switch between the two machines", "on one of them: `ping` the address of the other that is named here", "look at their firewalls: they must allow the data ports (docs/hosts.md)"],
        signs: &["is broken (for ", "its ranks cannot connect, though other programs there answer"],
        origin: "TS-15 TS-23",
    };
    /// A machine proved another key than the pinned one.
    MACHINE_KEY_CHANGED = Entry {
        code: "machine-key-changed",
        severity: Severity::Error,
        title: "the key of a machine has changed",
        explain: "Every machine has a key in its ~/.jackalope/identity. This machine stored it at `bootstrap` or `trust accept`, and sends nothing to a machine that proves another key. The other machine was reinstalled, its folder was deleted, or another machine answers at its address.",
        type_this: &["on that machine: `jackalope trust list` prints its key in the first line", "if it is the new key in the message: `jackalope trust accept HOST`   (or `jackalope bootstrap HOST` over SSH)", "if it is not: `jackalope trust revoke HOST`, and find out which machine answers at its address"],
        signs: &["it was installed anew, or another machine answers in its name"],
        origin: "TOP-12",
    };
    /// A machine's key is unknown or revoked.
    MACHINE_NOT_TRUSTED = Entry {
        code: "machine-not-trusted",
        severity: Severity::Error,
        title: "a machine is not trusted",
        explain: "No key is stored for it, or its key was revoked with `jackalope trust revoke`. A server that used it closes its connections at once and continues without it.",
        type_this: &["jackalope trust list", "if it is to be used: compare the key with `jackalope trust list` there, then `jackalope trust accept HOST`"],
        signs: &["its machine is not trusted any more", "the machine is not trusted any more", "is not known here"],
        origin: "TOP-12",
    };
    /// A rank's ticket is not accepted.
    TICKET_REFUSED = Entry {
        code: "ticket-refused",
        severity: Severity::Warn,
        title: "a rank's ticket is not accepted",
        explain: "Each rank proves a ticket that its server issued for this rank on this machine. Tickets of an earlier server, of a replaced rank, or of a machine whose key was revoked or has changed are refused; such a rank ends by itself when its lease expires.",
        type_this: &["jackalope status   (on the coordinator: are all ranks there?)", "jackalope trust list   (on the coordinator: is the machine's key the one that `jackalope trust list` shows there?)"],
        signs: &["the ticket is not accepted"],
        origin: "TOP-12",
    };
    /// A tool did not finish, so its part of the report is missing.
    TOOL_STUCK = Entry {
        code: "tool-stuck",
        severity: Severity::Warn,
        title: "a system tool does not end",
        explain: "It was killed after its time limit. A tool that hangs often indicates a device in a bad state.",
        type_this: &["on {node}: run `{tool}` by hand; if it hangs, restart the machine"],
        signs: &[],
        origin: "DI-05",
    };
    /// A tool is not installed.
    TOOL_MISSING = Entry {
        code: "tool-missing",
        severity: Severity::Note,
        title: "a system tool is missing",
        explain: "The information from this tool is unknown; nothing else depends on it.",
        type_this: &["on {node}: `command -v {tool}`"],
        signs: &[],
        origin: "DI-05",
    };
}
