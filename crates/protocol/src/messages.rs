//! The messages of the control plane.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::cache_cost::CacheCost;
use crate::content::{CheckpointId, ExpectedContent};
use crate::plan::{StepOutput, StepPlan, StepTimings};
use crate::secret::{HintedKey, Secret};
use crate::split::Split;

/// The first message of a rank.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Hello {
    /// Rank of the sender.
    pub rank: u32,
    /// Process id of the sender.
    pub pid: u32,
    /// Version of libmlx.
    pub mlx: String,
    /// Address at which this rank accepts the native group's connections.
    pub data_addr: SocketAddr,
}

/// Transport of collectives.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The native TCP group.
    Tcp,
    /// Stock MLX over TCP.
    Ring,
    /// Stock MLX over RDMA on Thunderbolt.
    Jaccl,
    /// Stock MLX over NVIDIA's NCCL.
    Nccl,
}

impl Backend {
    /// Every backend, in the order of the documentation.
    pub const ALL: [Backend; 4] = [Backend::Tcp, Backend::Ring, Backend::Jaccl, Backend::Nccl];

    /// Returns the name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Tcp => "tcp",
            Backend::Ring => "ring",
            Backend::Jaccl => "jaccl",
            Backend::Nccl => "nccl",
        }
    }

    /// Returns why this backend must not carry a pipeline, whose stages send to one other rank at a
    /// time; `None` if it can.
    pub fn no_pipeline(self) -> Option<&'static str> {
        match self {
            Backend::Tcp | Backend::Ring => None,
            Backend::Jaccl => Some("mixes up messages between two ranks (ml-explore/mlx#3149)"),
            Backend::Nccl => Some("has no messages between two ranks"),
        }
    }

    /// Whether this is one of MLX's own transports, which cannot continue after the loss of a peer.
    pub fn is_stock(self) -> bool {
        self != Backend::Tcp
    }
}

/// Device that computes arrays.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The GPU if libmlx has one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; loading fails if there is none.
    Gpu,
}

/// What a rank loads, and the limits that apply to it.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Setup {
    /// Number of ranks.
    pub num_ranks: u32,
    /// Directory of the checkpoint on the rank's machine, or on `model_source` if that is set.
    pub model_dir: String,
    /// Machine that has the checkpoint if the rank's machine does not; the rank reads its own byte
    /// ranges from there.
    pub model_source: Option<ModelSource>,
    /// Part of the model that each rank holds.
    pub split: Split,
    /// Transport of collectives.
    pub backend: Backend,
    /// Device to compute on.
    pub device: Device,
    /// Number of threads of the CPU kernels; 0 lets the rank choose.
    pub num_threads: u32,
    /// Number of sockets to each peer of the native group.
    pub sockets_per_peer: u32,
    /// Whether the native group adds checksums to its payloads.
    pub checksums: bool,
    /// Whether sums over ranks have the same bits for any split, on CPUs.
    pub exact_sums: bool,
    /// Maximum duration of one collective, in milliseconds.
    pub collective_timeout_ms: u64,
    /// Maximum time to form a group, in milliseconds.
    pub join_timeout_ms: u64,
    /// Time without a message from the coordinator after which a rank considers the connection
    /// lost, in milliseconds; 0 disables this, on the coordinator's own machine.
    pub silence_timeout_ms: u64,
    /// Time for which a rank that lost the coordinator keeps its weights and tries to reconnect, in
    /// milliseconds; 0 ends the rank at once.
    pub orphan_ms: u64,
    /// Whether steps report the times of their kernels.
    pub profile: bool,
    /// Expected content of the checkpoint; nothing is verified if absent.
    pub content: Option<ExpectedContent>,
    /// Memory that the coordinator expects caches to take, by rank; empty if the coordinator could
    /// not compute these numbers.
    pub cache_costs: Vec<CacheCost>,
}

impl Setup {
    /// Compares the memory that caches take on a rank, `found`, with the number that the
    /// coordinator expects. If they differed, the coordinator would plan with other numbers than
    /// the rank uses.
    ///
    /// # Errors
    /// Fails with a message for users if they differ.
    pub fn check_cache_cost(&self, rank: usize, found: CacheCost) -> Result<(), String> {
        match self.cache_costs.get(rank) {
            Some(expected) if *expected != found => Err(format!(
                "caches take {found} on rank {rank}, but {expected} by the coordinator's \
                 description of the checkpoint\n\
                 hint: the coordinator and the rank read different checkpoints or are different \
                 builds; compare config.json, and install the same build on all machines"
            )),
            _ => Ok(()),
        }
    }
}

/// A machine from which ranks read a checkpoint.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ModelSource {
    /// Name of the machine.
    pub host: String,
    /// Addresses at which the machine listens, the preferred one first.
    pub addrs: Vec<SocketAddr>,
    /// Temporary permission for the rank to read this one checkpoint there.
    pub grant: HintedKey,
}

/// Forms the group of one epoch. Caches are empty afterwards; weights are kept.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Join {
    /// Number of the epoch; increases with every group.
    pub epoch: u64,
    /// Addresses at which the receiver of this message reaches each rank's data plane, by rank.
    pub peers: Vec<SocketAddr>,
    /// Key generated for this group. Its ranks prove to each other that they know the key, and
    /// derive their encryption keys from it.
    pub key: Secret,
    /// Whether the connection between the receiver and each rank is encrypted, by rank.
    pub encrypt: Vec<bool>,
}

/// Messages to a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToRank {
    /// Sent once, after the handshake. A rank that has already loaded the same setup answers at
    /// once.
    Setup(Box<Setup>),
    /// Heartbeat, sent once a second: the coordinator is alive and the network between it and the
    /// rank works.
    Heartbeat {
        /// Time of sending by a clock of the coordinator, in microseconds.
        sent_us: u64,
    },
    /// Leave the old group and form a new one.
    Join(Join),
    /// Compute a step. `epoch` guards against a plan that was in flight when its group broke.
    Step {
        /// Epoch of the group that the plan was made for.
        epoch: u64,
        /// The step to compute.
        plan: StepPlan,
    },
    /// Leave the group at once, even out of the middle of a collective, and wait for a `Join`.
    Leave {
        /// Epoch of the group to leave; ignored if the rank has left that group already.
        epoch: u64,
    },
    /// End the process.
    Stop,
}

/// Messages from a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromRank {
    /// Progress of loading.
    Progress {
        /// Number of bytes loaded.
        done_bytes: u64,
        /// Total number of bytes to load.
        total_bytes: u64,
    },
    /// The rank computes its first steps, for which some devices compile kernels. It is sent when they begin,
    /// and then every second.
    WarmingUp,
    /// The rank has loaded its shard into memory.
    Loaded(RankFacts),
    /// The rank has joined the group of this epoch.
    Joined {
        /// Epoch of the group.
        epoch: u64,
    },
    /// Rank 0 has computed a step.
    Output {
        /// Epoch of the group that computed it.
        epoch: u64,
        /// Sampled tokens and other results.
        output: StepOutput,
    },
    /// Another rank has computed a step.
    Done {
        /// Epoch of the group that computed it.
        epoch: u64,
        /// Number of the plan.
        step: u64,
        /// Breakdown of the step's time.
        timings: StepTimings,
    },
    /// Heartbeat, sent once a second as long as the process lives, whatever the compute thread
    /// does.
    Heartbeat {
        /// Phase of the compute thread.
        phase: Phase,
        /// Number of steps completed in this epoch, which shows progress and not only that the
        /// process lives.
        steps_done: u64,
        /// Time for which the running collective has waited for peers, in milliseconds; 0 while
        /// this rank computes. A rank that waits is not at fault.
        waiting_ms: u64,
        /// Memory in use.
        memory: RankMemory,
        /// The coordinator's last heartbeat. The time from its sending to the arrival of this
        /// message, minus the time for which the rank held it, is the round-trip time.
        echo: Option<HeartbeatEcho>,
    },
    /// A failure. After [`FailureKind::Group`] the rank waits for a `Join`; after the other kinds
    /// its process ends.
    Failed(RankFailure),
}

/// A [`ToRank::Heartbeat`] that a rank has received.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HeartbeatEcho {
    /// Time of sending, copied from the heartbeat.
    pub sent_us: u64,
    /// Time since the rank received the heartbeat, in microseconds.
    pub held_us: u64,
}

/// What a rank is doing.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waiting for its setup.
    Starting,
    /// Loading the shard into memory.
    Loading,
    /// Computing its first steps, before it is in a group.
    WarmingUp,
    /// Loaded; not in a group.
    Waiting,
    /// Forming a group.
    Joining,
    /// Ready, with nothing to compute.
    Idle,
    /// Computing a step.
    Computing,
}

impl Phase {
    /// Returns the name used in messages.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Loading => "loading",
            Phase::WarmingUp => "warming up",
            Phase::Waiting => "waiting",
            Phase::Joining => "joining",
            Phase::Idle => "idle",
            Phase::Computing => "computing",
        }
    }
}

/// A failure of a rank.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankFailure {
    /// Epoch of the group concerned; 0 before the first one.
    pub epoch: u64,
    /// Phase of the rank when it failed.
    pub phase: Phase,
    /// Kind of the failure, which decides whether a new group can recover from it.
    pub kind: FailureKind,
    /// Message for users: what happened, what was found, possibly a `hint:` line.
    pub message: String,
    /// For [`FailureKind::Group`]: the ranks that did not respond. The reporting rank cannot know
    /// whether these ranks or the links to them are at fault.
    pub peers: Vec<u32>,
}

/// Kind of a failure.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FailureKind {
    /// The group broke (a peer was lost or a deadline passed); the weights are intact.
    Group,
    /// The checkpoint or the request to load it is at fault; a restart does not help.
    Model,
    /// The device or the process is at fault; a new process may help.
    Device,
}

/// Units `start..end` of a dimension that is divided among the ranks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnitRange {
    /// Index of the first unit.
    pub start: u32,
    /// Index after the last unit.
    pub end: u32,
}

/// Facts about the shard of a rank, and about the model.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankFacts {
    /// `model_type` of the checkpoint.
    pub architecture: String,
    /// Number of decoder layers of the whole model.
    pub num_layers: u32,
    /// Layers of this rank.
    pub layers: UnitRange,
    /// Size of the vocabulary.
    pub vocab_size: u32,
    /// Maximum length of a sequence that the model was trained for, in tokens.
    pub context_tokens: u32,
    /// Attention heads of this rank.
    pub heads: UnitRange,
    /// Key and value heads of this rank.
    pub kv_heads: UnitRange,
    /// Inner dimensions of the MLP on this rank.
    pub mlp: UnitRange,
    /// Vocabulary rows of this rank.
    pub vocab: UnitRange,
    /// Memory that caches take on this rank.
    pub cache_cost: CacheCost,
    /// Size of the weights in memory, in bytes.
    pub weights_bytes: u64,
    /// Number of bytes of tensor data read from the checkpoint.
    pub bytes_read: u64,
    /// Part of `bytes_read` that every rank reads.
    pub replicated_bytes: u64,
    /// Time to load, in milliseconds.
    pub load_ms: u64,
    /// `cpu`, `metal` or `cuda`.
    pub device: String,
    /// Memory that the rank may still use for caches, in bytes, as far as the machine can determine
    /// it; 0 if unknown.
    pub free_bytes: u64,
    /// Width of the hidden states, which is also the length of an embedding.
    pub hidden_size: u32,
    /// The checkpoint's identity, if the shard was verified against it.
    pub content: Option<CheckpointId>,
}

/// Memory usage of a rank, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankMemory {
    /// Memory held by live arrays.
    pub active_bytes: u64,
    /// Memory kept by MLX for reuse.
    pub cache_bytes: u64,
    /// Memory of the sequences' keys and values.
    pub kv_bytes: u64,
    /// Resident memory of the process, as the system counts it; 0 if unknown.
    pub resident_bytes: u64,
    /// Peak memory held by live arrays since the process started.
    pub peak_bytes: u64,
}
