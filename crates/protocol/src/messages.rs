//! What travels on the control plane.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::content::{CheckpointId, ExpectedContent};
use crate::secure::HintedKey;
use crate::split::Split;
use crate::{StepOutput, StepPlan, StepTimings};

/// Proves that a connection belongs to this cluster, and keeps it private. Handed to a process over
/// its standard input, never logged.
#[derive(Clone, Copy, Deserialize, Eq, PartialEq, Serialize)]
pub struct Secret(pub [u8; 32]);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// Draws one from the system's source of randomness.
    ///
    /// # Errors
    /// If the system has none.
    pub fn draw() -> std::io::Result<Secret> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Secret(bytes))
    }

    /// Reads 64 hexadecimal digits, as [`Secret::to_hex`] writes them.
    pub fn from_hex(text: &str) -> Option<Secret> {
        let digits = text.trim().as_bytes();
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
        Some(Secret(std::array::from_fn(|idx| {
            digit(digits[2 * idx]) << 4 | digit(digits[2 * idx + 1])
        })))
    }

    /// 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The first message of a rank.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Hello {
    /// The rank that speaks.
    pub rank: u32,
    /// Its process.
    pub pid: u32,
    /// Version of libmlx.
    pub mlx: String,
    /// Where this rank accepts the native group's connections.
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

    /// The word people type.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Tcp => "tcp",
            Backend::Ring => "ring",
            Backend::Jaccl => "jaccl",
            Backend::Nccl => "nccl",
        }
    }

    /// Why a pipeline must not go over it, where that is so: stages speak to one other rank at a time.
    pub fn no_pipeline(self) -> Option<&'static str> {
        match self {
            Backend::Tcp | Backend::Ring => None,
            Backend::Jaccl => Some("mixes up messages between two ranks (ml-explore/mlx#3149)"),
            Backend::Nccl => Some("has no messages between two ranks"),
        }
    }

    /// True for MLX's own transports, which cannot lose a peer and go on.
    pub fn is_stock(self) -> bool {
        self != Backend::Tcp
    }
}

/// Where arrays are computed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The GPU if libmlx has one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU; an error where there is none.
    Gpu,
}

/// What a rank loads, and its bounds.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Setup {
    /// Number of ranks.
    pub num_ranks: u32,
    /// Directory of the checkpoint on the rank's machine, or on the one it is read from.
    pub model_dir: String,
    /// Who has the checkpoint if the rank's machine does not: the rank reads its own byte ranges from
    /// there.
    pub model_source: Option<ModelSource>,
    /// What each rank holds.
    pub split: Split,
    /// Transport of collectives.
    pub backend: Backend,
    /// Where to compute.
    pub device: Device,
    /// Threads of the CPU kernels; 0 lets the rank choose.
    pub num_threads: u32,
    /// Sockets to each peer of the native group.
    pub sockets_per_peer: u32,
    /// Checksums on the native group's payloads.
    pub checksums: bool,
    /// Bound of one collective, in milliseconds.
    pub collective_timeout_ms: u64,
    /// Bound of forming a group, in milliseconds.
    pub join_timeout_ms: u64,
    /// Silence of the brain after which a rank takes the connection for lost, in milliseconds; 0 for
    /// never, on the brain's own machine.
    pub silence_timeout_ms: u64,
    /// How long a rank that lost the brain keeps its weights and tries to reach it again, in
    /// milliseconds; 0 ends it at once.
    pub orphan_ms: u64,
    /// Whether steps report their kernels' times.
    pub profile: bool,
    /// Expected content of the checkpoint; nothing is verified if absent.
    pub content: Option<ExpectedContent>,
}

/// A machine that others read a checkpoint from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ModelSource {
    /// What people call it.
    pub host: String,
    /// Where it listens, the preferred address first.
    pub addrs: Vec<SocketAddr>,
    /// Temporary permission for the rank to read this one checkpoint there.
    pub grant: HintedKey,
}

/// Forms the group of one epoch. Caches are empty afterwards, weights stay.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Join {
    /// Counts up with every group.
    pub epoch: u64,
    /// Where the receiver of this message reaches each rank's data plane, by rank.
    pub peers: Vec<SocketAddr>,
    /// Generated for each group. Its ranks prove to each other that they know it, and derive their
    /// encryption keys from it.
    pub key: Secret,
    /// Whether the connection between the receiver and each rank is encrypted, by rank.
    pub encrypt: Vec<bool>,
}

/// Messages to a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ToRank {
    /// Once, after the handshake. A rank that has loaded just that already says so at once.
    Setup(Setup),
    /// Sent once a second: the brain lives and the network between us works.
    Beat {
        /// When it was sent, by a clock of the brain, in microseconds.
        sent_us: u64,
    },
    /// Form a group; leave the old one.
    Join(Join),
    /// Compute. `epoch` guards against a plan that was under way when its group broke.
    Step {
        /// The group the plan was made for.
        epoch: u64,
        /// What to compute.
        plan: StepPlan,
    },
    /// Leave the group at once, even out of the middle of a collective, and wait for a `Join`.
    Leave {
        /// The group to leave; an older one is left already.
        epoch: u64,
    },
    /// End the process.
    Stop,
}

/// Messages from a rank.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum FromRank {
    /// Loading goes on.
    Progress {
        /// Bytes in place.
        done_bytes: u64,
        /// Bytes in all.
        total_bytes: u64,
    },
    /// The shard is in memory.
    Loaded(RankFacts),
    /// The group of this epoch stands.
    Joined {
        /// The group's epoch.
        epoch: u64,
    },
    /// Rank 0 has computed a step.
    Output {
        /// The group that computed it.
        epoch: u64,
        /// What was drawn.
        output: StepOutput,
    },
    /// Another rank has computed a step.
    Done {
        /// The group that computed it.
        epoch: u64,
        /// The plan's number.
        step: u64,
        /// Where the time went.
        timings: StepTimings,
    },
    /// Sent once a second while the process lives, whatever the compute thread does.
    Heartbeat {
        /// Phase of the compute thread.
        phase: Phase,
        /// Steps completed in this epoch: progress, not mere life.
        steps_done: u64,
        /// How long the running collective has waited for peers, in milliseconds; 0 while this rank
        /// computes. Who waits is not to blame.
        waiting_ms: u64,
        /// Memory in use.
        memory: RankMemory,
        /// The last beat of the brain: what lies between it and this message without the time it was
        /// held here is a message's way there and back.
        heard: Option<HeardBeat>,
    },
    /// Something ended early. After [`FailureKind::Group`] the rank waits for a `Join`; after the
    /// other kinds its process ends.
    Failed(RankFailure),
}

/// A [`ToRank::Beat`] that a rank has received.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct HeardBeat {
    /// As in the beat.
    pub sent_us: u64,
    /// How long ago it came, in microseconds.
    pub held_us: u64,
}

/// What a rank is busy with.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Waiting for its setup.
    Starting,
    /// Bringing the shard to memory.
    Loading,
    /// Loaded, without a group.
    Waiting,
    /// Forming a group.
    Joining,
    /// Ready, nothing to compute.
    Idle,
    /// Computing a step.
    Computing,
}

impl Phase {
    /// The word in messages.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Loading => "loading",
            Phase::Waiting => "waiting",
            Phase::Joining => "joining",
            Phase::Idle => "idle",
            Phase::Computing => "computing",
        }
    }
}

/// What went wrong on a rank.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankFailure {
    /// The group concerned; 0 before the first one.
    pub epoch: u64,
    /// What the rank was doing.
    pub phase: Phase,
    /// Whether a new group mends it.
    pub kind: FailureKind,
    /// For people: what happened, what was found, possibly a `hint:` line.
    pub message: String,
    /// For [`FailureKind::Group`]: the ranks that did not respond. The reporting rank cannot know
    /// whether these ranks or the links to them are at fault.
    pub peers: Vec<u32>,
}

/// What a failure means for the rank.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum FailureKind {
    /// The group broke (a peer was lost, a deadline passed): weights are intact.
    Group,
    /// The checkpoint or the request to load it is at fault: starting again will not help.
    Model,
    /// The device or the process is at fault: a new process may help.
    Device,
}

/// Units `start..end` of something that is divided over the ranks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct UnitRange {
    /// First unit.
    pub start: u32,
    /// One past the last unit.
    pub end: u32,
}

/// What a rank holds.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankFacts {
    /// `model_type` of the checkpoint.
    pub architecture: String,
    /// Decoder layers of the whole model.
    pub num_layers: u32,
    /// Layers of this rank.
    pub layers: UnitRange,
    /// Entries of the vocabulary.
    pub vocab_size: u32,
    /// Longest sequence the model was made for.
    pub context_tokens: u32,
    /// Attention heads of this rank.
    pub heads: UnitRange,
    /// Key and value heads of this rank.
    pub kv_heads: UnitRange,
    /// Inner dimension of the MLP on this rank.
    pub mlp: UnitRange,
    /// Vocabulary rows of this rank.
    pub vocab: UnitRange,
    /// Bytes of one token's keys and values on this rank.
    pub kv_bytes_per_token: u64,
    /// Bytes of weights in memory.
    pub weights_bytes: u64,
    /// Bytes of tensor data read from the checkpoint.
    pub bytes_read: u64,
    /// The part of `bytes_read` that every rank reads.
    pub replicated_bytes: u64,
    /// Time to load, in milliseconds.
    pub load_ms: u64,
    /// `cpu`, `metal` or `cuda`.
    pub device: String,
    /// Memory a rank may still take for caches, as far as the machine can tell; 0 if unknown.
    pub free_bytes: u64,
    /// Width of the hidden states, and length of an embedding.
    pub hidden_size: u32,
    /// The checkpoint's identity, if the shard was verified against it.
    pub content: Option<CheckpointId>,
}

/// A rank's memory, in bytes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct RankMemory {
    /// Held by live arrays.
    pub active_bytes: u64,
    /// Kept by MLX for reuse.
    pub cache_bytes: u64,
    /// Of the sequences' keys and values.
    pub kv_bytes: u64,
    /// Of the process, as the system counts it; 0 if unknown.
    pub resident_bytes: u64,
    /// Most that live arrays have held since the process began.
    pub peak_bytes: u64,
}
