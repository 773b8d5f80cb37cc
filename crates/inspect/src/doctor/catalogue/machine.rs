//! Problems with memory, disks, processes, versions, clocks, models and power.

use super::{Entry, entries};
use crate::doctor::Severity;

entries! { MACHINE:
    /// The machines run different versions of macOS.
    OS_VERSIONS_DIFFER = Entry {
        code: "os-versions-differ",
        severity: Severity::Warn,
        title: "the machines run different versions of macOS",
        explain: "RDMA drivers of different versions are known to be incompatible.",
        type_this: &["update all to the newest version: `softwareupdate --list`"],
        signs: &[],
        origin: "TOP-08 CM-05",
    };
    /// The machines have different versions of jackalope.
    VERSIONS_DIFFER = Entry {
        code: "versions-differ",
        severity: Severity::Error,
        title: "the machines have different versions of jackalope",
        explain: "Ranks of different versions refuse each other when they meet.",
        type_this: &["install the same version on all machines, then `jackalope doctor` again"],
        signs: &["version mismatch"],
        origin: "TOP-19 TS-02",
    };
    /// The machines have different versions of libmlx.
    MLX_VERSIONS_DIFFER = Entry {
        code: "mlx-versions-differ",
        severity: Severity::Error,
        title: "the machines have different versions of MLX",
        explain: "MLX's own transports do not check versions: different versions hang or compute wrong results.",
        type_this: &["install the same version of jackalope on all machines: each brings its MLX"],
        signs: &[],
        origin: "TOP-19 TS-02",
    };
    /// A clock is wrong.
    CLOCK_SKEW = Entry {
        code: "clock-skew",
        severity: Severity::Warn,
        title: "a clock is wrong",
        explain: "Logs of several machines cannot be compared, and certificates may be rejected.",
        type_this: &["on {node} (macOS): `sudo sntp -sS time.apple.com`", "on {node} (Linux): `sudo timedatectl set-ntp true`"],
        signs: &[],
        origin: "DI-05",
    };
    /// Memory is wired although no model runs.
    WIRED_MEMORY = Entry {
        code: "wired-memory",
        severity: Severity::Warn,
        title: "memory is wired although no model runs",
        explain: "A process that computed on the GPU and was killed with SIGKILL can leave its memory wired until the Mac is restarted.",
        type_this: &["on {node}: `sudo vm_stat; ps aux -m | head`", "if nothing there explains it: `sudo shutdown -r now`", "end ranks with SIGTERM, never with `kill -9`"],
        signs: &[],
        origin: "DI-06 TS-05",
    };
    /// Another program that computes models is running.
    STALE_PROCESS = Entry {
        code: "stale-process",
        severity: Severity::Warn,
        title: "a program that computes models runs already",
        explain: "It holds memory, and an RDMA device serves only one process. It may be left over from a crash.",
        type_this: &["on {node}: `ps -fp {pid}` says what it is", "if it is not needed: `kill {pid}`   (not -9: memory could stay wired)"],
        signs: &[],
        origin: "TS-05 DI-06",
    };
    /// One of our servers answers but cannot compute.
    SERVER_NOT_READY = Entry {
        code: "server-not-ready",
        severity: Severity::Warn,
        title: "a server answers, but cannot compute",
        explain: "Its model is loading, or it has lost ranks and forms its group again.",
        type_this: &["on {node}: `JACKALOPE_HOME={home} jackalope status` says what it waits for"],
        signs: &[],
        origin: "TS-05",
    };
    /// One of our servers does not answer.
    SERVER_SILENT = Entry {
        code: "server-silent",
        severity: Severity::Warn,
        title: "a server does not answer",
        explain: "Its process runs, but its HTTP port did not answer within two seconds.",
        type_this: &["on {node}: `JACKALOPE_HOME={home} jackalope logs` may say why", "on {node}: `JACKALOPE_HOME={home} jackalope stop`, or `kill {pid}` if that finds no server"],
        signs: &[],
        origin: "TS-05",
    };
    /// One of our programs was stopped by a signal.
    PROGRAM_STOPPED = Entry {
        code: "program-stopped",
        severity: Severity::Warn,
        title: "a program was stopped by a signal",
        explain: "Ctrl-Z in a terminal or SIGSTOP stopped it; it holds its memory and its ports, and does not answer.",
        type_this: &["on {node}: `kill -CONT {pid}` continues it"],
        signs: &[],
        origin: "TS-05",
    };
    /// A port that clusters use is taken.
    PORT_TAKEN = Entry {
        code: "port-taken",
        severity: Severity::Warn,
        title: "a port that clusters use is taken",
        explain: "Another program that listens there will fail with `Address already in use`.",
        type_this: &["on {node}: `sudo lsof -nP -iTCP:{port} -sTCP:LISTEN` names the program", "end it, or use another port: `--port`"],
        signs: &[],
        origin: "TS-13 DI-06",
    };
    /// Little memory is free.
    MEMORY_LOW = Entry {
        code: "memory-low",
        severity: Severity::Warn,
        title: "little memory is free",
        explain: "Weights and caches must fit in the free memory; else the system swaps or kills processes.",
        type_this: &["on {node}: close programs; `ps aux -m | head` (macOS) or `ps aux --sort=-rss | head` (Linux) names the largest", "give this machine a smaller share: `--share`"],
        signs: &[],
        origin: "TOP-15",
    };
    /// The disk is nearly full.
    DISK_LOW = Entry {
        code: "disk-low",
        severity: Severity::Warn,
        title: "the disk is nearly full",
        explain: "Models, logs and swap need space; macOS becomes unreliable with less than some gigabytes.",
        type_this: &["on {node}: `du -sh ~/.cache/huggingface ~/.jackalope ~/Library/Caches 2>/dev/null`"],
        signs: &["No space left on device", "errno 28"],
        origin: "TS-08",
    };
    /// The model is missing on a machine.
    MODEL_MISSING = Entry {
        code: "model-missing",
        severity: Severity::Error,
        title: "the model is not on this machine",
        explain: "Every rank reads its part from a copy on its own machine. The copies may be in different folders.",
        type_this: &["jackalope models sync {model} --hosts {node}"],
        signs: &["config.json: No such file"],
        origin: "TOP-16 TS-04 TS-08",
    };
    /// The model's files differ between machines.
    MODEL_DIFFERS = Entry {
        code: "model-differs",
        severity: Severity::Error,
        title: "the model's files differ between machines",
        explain: "Different files mean another model, another quantisation, or an interrupted or damaged copy. Ranks would compute inconsistent results, so `serve` compares the hashes of all content and refuses. Without `--hash`, `doctor` compares only names and sizes.",
        type_this: &["jackalope models check {model} --hash --hosts {node}   (compares hashes, and says which files differ)", "jackalope models sync {model} --hosts {node}"],
        signs: &["differs from the model that is served", "a different table of tensors"],
        origin: "TS-19 TS-04 TS-07",
    };
    /// The machine may fall asleep.
    SLEEP_ALLOWED = Entry {
        code: "sleep-allowed",
        severity: Severity::Warn,
        title: "the machine may fall asleep",
        explain: "A Mac that sleeps drops out of the cluster, and its RDMA ports go down.",
        type_this: &["on {node}: `sudo pmset -a sleep 0 disksleep 0`   (undo: `sudo pmset -a sleep 1 disksleep 10`)", "or while it computes: `caffeinate -dis`"],
        signs: &[],
        origin: "TS-27",
    };
    /// The display may fall asleep.
    DISPLAY_SLEEP = Entry {
        code: "display-sleep",
        severity: Severity::Warn,
        title: "the display may fall asleep",
        explain: "RDMA ports were seen to go down when the display sleeps.",
        type_this: &["on {node}: `sudo pmset -a displaysleep 0`   (undo: `sudo pmset -a displaysleep 10`)", "or while it computes: `caffeinate -d`"],
        signs: &[],
        origin: "TS-27",
    };
}
