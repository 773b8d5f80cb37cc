//! Errors in the logs of ranks and of MLX's own transports.

use super::{Entry, entries};
use crate::doctor::Severity;

entries! { LOGS:
    /// The RDMA device is busy (EBUSY).
    RDMA_BUSY = Entry {
        code: "rdma-busy",
        severity: Severity::Error,
        title: "the RDMA device is busy (errno 16)",
        explain: "A device has about ten queue pairs, enough for one process. Another process, often left over from a crash, still holds them, and the driver needs half a minute to release them.",
        type_this: &["on every machine: `pgrep -fl 'jackalope-rank|mlx|python'`, then `kill` left-over processes", "wait 30 seconds and start again", "if it stays busy: restart the machines"],
        signs: &["errno 16", "EBUSY", "Resource busy", "Device or resource busy"],
        origin: "TS-14",
    };
    /// The RDMA device provides no protection domain.
    PROTECTION_DOMAIN = Entry {
        code: "protection-domain",
        severity: Severity::Error,
        title: "no protection domain",
        explain: "The device cannot allocate one: its port is down, RDMA is off, or crashed processes have used up its eleven protection domains.",
        type_this: &["jackalope doctor --hosts hosts.json   (shows ports and RDMA)", "end the processes that hold the device: `pgrep -fl 'jackalope-rank|mlx'`", "if this does not help: restart that machine"],
        signs: &["Couldn't allocate protection domain", "Could not allocate protection domain"],
        origin: "TS-25",
    };
    /// The queue pair's transition to RTR failed with errno 22.
    RTR_ERRNO_22 = Entry {
        code: "rtr-errno-22",
        severity: Severity::Error,
        title: "the other end's address is refused (RTR, errno 22)",
        explain: "The queue pair got an invalid address: the port has no IPv4 address, it is in a bridge, or the address has just changed.",
        type_this: &["jackalope doctor --hosts hosts.json   (look for rdma-no-ipv4-gid and bridge-member)", "jackalope autoconfig --hosts ... --dry-run"],
        signs: &["RTR failed with errno 22", "RTS failed with errno 22", "INIT failed with errno 22"],
        origin: "TS-26 DI-11",
    };
    /// The queue pair's transition to RTR failed with errno 60.
    RTR_ERRNO_60 = Entry {
        code: "rtr-errno-60",
        severity: Severity::Error,
        title: "the other end cannot be reached on this cable (RTR, errno 60)",
        explain: "One side's port is down, or the devices of the hostfile are not the two ends of one cable.",
        type_this: &["jackalope doctor --hosts hosts.json   (look for rdma-port-down and rdma-wrong-cable)", "disconnect the cable and connect it again"],
        signs: &["RTR failed with errno 60"],
        origin: "TS-26",
    };
    /// The queue pair's transition to RTR failed with errno 96.
    RTR_ERRNO_96 = Entry {
        code: "rtr-errno-96",
        severity: Severity::Error,
        title: "no queue pair is left (RTR, errno 96)",
        explain: "Queue pairs and protection domains of crashed processes are used up, or the table of addresses was damaged by taking the interface down and up again. Only a restart clears both.",
        type_this: &["end all ranks with SIGTERM, then restart the machine that reports this", "jackalope doctor --hosts hosts.json"],
        signs: &["errno 96"],
        origin: "TS-26",
    };
    /// The RDMA device is out of memory (ENOMEM).
    RDMA_NO_MEMORY = Entry {
        code: "rdma-no-memory",
        severity: Severity::Error,
        title: "the RDMA device is out of memory (errno 12)",
        explain: "Before macOS 26.3 frames have 4 KB, and a large sum needs more of them than the device queues.",
        type_this: &["install macOS 26.3 or later on all machines", "until then use `--backend tcp`"],
        signs: &["errno 12", "errno -12", "ENOMEM", "Register memory region failed"],
        origin: "TS-26",
    };
    /// A connection of an earlier run is used (ENOTCONN).
    CONNECTION_STALE = Entry {
        code: "connection-stale",
        severity: Severity::Error,
        title: "a stale connection of an earlier run is used (errno 57)",
        explain: "The other side is gone, and this one still holds the socket.",
        type_this: &["end the ranks on all machines, then start again", "jackalope doctor --hosts hosts.json   (names left-over processes)"],
        signs: &["errno 57", "errno=57", "error: 57", "Socket is not connected"],
        origin: "TS-26",
    };
    /// Another rank failed first; this one only reports it.
    OTHER_RANK_FAILED = Entry {
        code: "other-rank-failed",
        severity: Severity::Error,
        title: "another rank failed first",
        explain: "A rank that failed closed the side channel; the error number is unrelated. The cause is in the log of that rank.",
        type_this: &["read the last lines of every other rank's log: `jackalope doctor --log FILE`"],
        signs: &["Recv failed with errno=2", "[ring] Receiving from socket"],
        origin: "TS-15",
    };
    /// Connecting to another rank took too long.
    CONNECT_TIMEOUT = Entry {
        code: "connect-timeout",
        severity: Severity::Error,
        title: "a rank could not connect to another",
        explain: "Rank 0 was not running yet, its address is wrong or on another network, a firewall is active, or macOS denies the Local Network permission.",
        type_this: &["jackalope doctor --hosts hosts.json", "on the worker: `ping -c 3 RANK0_ADDRESS`", "on the machine of rank 0: `lsof -nP -iTCP:PORT -sTCP:LISTEN` (do not try the port with `nc`: JACCL treats every connection as a rank)"],
        signs: &["Couldn't connect (error", "errno 60", "errno=60", "[ring] Couldn't connect", "connect() failed after"],
        origin: "TS-03 TS-15 TS-16 TS-23",
    };
    /// There is no route to another machine.
    NO_ROUTE = Entry {
        code: "no-route",
        severity: Severity::Error,
        title: "no route to a machine (errno 65)",
        explain: "Either there is none (cable disconnected, address lost), or macOS denies the Local Network permission: then `ping` works and only this program fails.",
        type_this: &["ping -c 3 THAT_ADDRESS", "if ping works: System Settings, Privacy & Security, Local Network: switch your terminal off and on", "if it does not: jackalope autoconfig --hosts ... --dry-run"],
        signs: &["No route to host", "errno 65", "error: 65", "errno 113"],
        origin: "TS-15 TS-26",
    };
    /// Ranks of another server compute different batches.
    BATCH_DESYNC = Entry {
        code: "batch-desync",
        severity: Severity::Error,
        title: "ranks compute different batches",
        explain: "The ranks of a server that plan independently have diverged. Jackalope's ranks get every step from one plan, so this message comes from another program.",
        type_this: &["keep the logs of all ranks for a report", "restart the whole server, not one rank"],
        signs: &["BATCH DESYNC"],
        origin: "TS-21",
    };
    /// A port is already in use.
    ADDRESS_IN_USE = Entry {
        code: "address-in-use",
        severity: Severity::Error,
        title: "a port is already taken",
        explain: "Another program listens there, often an earlier run of the same one.",
        type_this: &["sudo lsof -nP -iTCP -sTCP:LISTEN | grep PORT", "kill it, or use another port: `--port`"],
        signs: &["Address already in use", "errno 48", "errno 98", "EADDRINUSE"],
        origin: "TS-13 TS-05",
    };
    /// The system ran out of memory.
    OUT_OF_MEMORY = Entry {
        code: "out-of-memory",
        severity: Severity::Error,
        title: "the system was out of memory",
        explain: "The kernel killed a process, or the GPU could not allocate memory. Weights, caches and the activations of one step must fit together.",
        type_this: &["jackalope doctor   (shows free and wired memory)", "less context or a smaller cache: `--context`, `--kv-mib`", "fewer tokens per step: `--step-tokens 256`, or a smaller share for this machine: `--share`"],
        signs: &["Killed: 9", "signal 9", "SIGKILL", "out of memory", "OutOfMemory", "oom-kill", "Attempting to allocate", "Insufficient Memory"],
        origin: "TOP-15 TS-05",
    };
    /// The GPU's watchdog ended a computation.
    GPU_TIMEOUT = Entry {
        code: "gpu-timeout",
        severity: Severity::Error,
        title: "the GPU's watchdog ended a computation",
        explain: "A command buffer waited for more than some five seconds: for a rank that was late, or that is gone.",
        type_this: &["look for the rank that was late: `jackalope doctor --log FILE` for each", "do not set MLX_METAL_FAST_SYNCH: it turns this into a hang until reboot"],
        signs: &["Caused GPU Timeout", "CallbackErrorTimeout", "kIOGPUCommandBufferCallbackErrorTimeout"],
        origin: "TS-01 TS-03",
    };
    /// MLX's ring does not support an operation.
    RING_LIMITS = Entry {
        code: "ring-limits",
        severity: Severity::Error,
        title: "MLX's ring cannot do this",
        explain: "The ring supports sums, gathers, and sending to neighbours, but neither scattering nor subgroups.",
        type_this: &["use `--backend tcp` or `--backend jaccl`"],
        signs: &["[ring] sum_scatter not supported", "[ring] Group split not supported"],
        origin: "TS-09",
    };
    /// MLX found no usable backend.
    NO_BACKEND = Entry {
        code: "no-backend",
        severity: Severity::Error,
        title: "MLX found no transport",
        explain: "The requested transport is not built into this libmlx, or its hostfile or devices were not given.",
        type_this: &["jackalope link --backend ring,jaccl,nccl   (shows which ones this machine's libmlx has)", "use `--backend tcp`, which needs no settings"],
        signs: &["Couldn't initialize any backend", "You need to provide via environment variables a rank", "The only valid values for backend are"],
        origin: "TS-06 TS-22",
    };
    /// The file of RDMA devices is invalid.
    DEVICE_FILE = Entry {
        code: "device-file",
        severity: Severity::Error,
        title: "the file of RDMA devices does not fit the ranks",
        explain: "It has one row for each rank and in it one entry for each other rank. A copy under /tmp is lost at a reboot.",
        type_this: &["jackalope autoconfig --hosts ... --backend jaccl --out hosts.json"],
        signs: &["The device file should", "number of RDMA devices does not match hosts", "RDMA device of self should be null", "no RDMA device is listed for", "mlx_ibv_devices.json"],
        origin: "DI-09 TS-20 TOP-03",
    };
    /// The model does not support pipeline parallelism in mlx-lm.
    NO_PIPELINE = Entry {
        code: "no-pipeline",
        severity: Severity::Error,
        title: "the model cannot be split into a pipeline",
        explain: "mlx-lm has pipelines for few architectures. Jackalope can split every architecture that it supports, by layers or within layers.",
        type_this: &["jackalope serve --model DIR --ranks N"],
        signs: &["does not support pipeline parallelism"],
        origin: "TS-09",
    };
}
