//! Predicts the speed of a placement from memory and link bandwidths: decoding reads every weight
//! once per token. If all ranks hold a part of every layer, each layer waits for two all-reduce
//! operations. If they hold whole layers, a token passes from one rank to the next. The prediction
//! is good enough to compare placements.

use jackalope_protocol::Device;
use jackalope_protocol::split::Split;

use super::NodeOffer;
use super::dealing::shards;
use super::model::PlacementModel;

/// Fraction of the memory bandwidth that decoding reaches. BENCHMARKS.md has 68 and 70 % for a dense
/// model on two cores, and 53 to 97 % for mixtures of experts.
const DECODE_EFFICIENCY: f64 = 0.65;

/// Multiply-accumulate operations during prefill per byte of memory bandwidth. For the CPU about
/// what BENCHMARKS.md has: 153 and 246 prompt tokens/s of 0.6 billion weights with one and two
/// threads, which read 29 and 32 GB/s of memory, are 3.2 and 4.6. For Apple's GPUs an assumption:
/// about two thirds of the arithmetic throughput that the manufacturer states, divided by the
/// memory bandwidth.
const CPU_MACS_PER_BYTE: f64 = 4.0;
const GPU_MACS_PER_BYTE: f64 = 12.0;

/// Number of prompt tokens that are computed together.
const CHUNK_TOKENS: u32 = 512;

/// Number of sequences in the batch whose decode speed is predicted.
pub const BATCH_SEQUENCES: u32 = 8;

/// Length in tokens of the prompt of a usual request, for which placements are compared: one turn
/// of a conversation.
pub(super) const USUAL_PROMPT_TOKENS: u32 = 1000;

/// Length in tokens of the answer to a usual request.
pub(super) const USUAL_ANSWER_TOKENS: u32 = 300;

/// Size in bytes of an element in an all-reduce.
const SUM_BYTES: f64 = 4.0;

/// The kind of connection between two machines.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkKind {
    /// Both are the same machine.
    Loopback,
    /// RDMA over Thunderbolt.
    Rdma,
    /// TCP over Thunderbolt.
    Thunderbolt,
    /// TCP over a network.
    Ethernet,
}

/// Where a link's numbers come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LinkSource {
    /// A measurement.
    Measured,
    /// The usual values for a link of this kind.
    Usual,
}

/// The speed of the connection between two machines.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkSpeed {
    /// Kind of the connection.
    pub kind: LinkKind,
    /// Time of a small exchange, in microseconds.
    pub latency_us: f64,
    /// Bandwidth for a large exchange.
    pub bytes_per_s: f64,
    /// Where the numbers come from.
    pub source: LinkSource,
}

impl LinkSpeed {
    /// Returns the usual values of a kind. Loopback: BENCHMARKS.md. RDMA: mlx-jaccl-cluster's
    /// measurement of two M4 Pro. TCP over Thunderbolt: 10 to 20 Gbit/s in practice, and a latency
    /// of 300 µs, which is attributed to Apple's TN3205. Ethernet: one Gbit/s.
    pub fn usual(kind: LinkKind) -> LinkSpeed {
        let (latency_us, bytes_per_s) = match kind {
            LinkKind::Loopback => (12.5, 1.78e9),
            LinkKind::Rdma => (25.5, 8.05e9),
            LinkKind::Thunderbolt => (300.0, 1.9e9),
            LinkKind::Ethernet => (300.0, 0.117e9),
        };
        LinkSpeed { kind, latency_us, bytes_per_s, source: LinkSource::Usual }
    }
}

/// The links between any two of a number of machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// `rows[a][b]` is the link from a to b; as many rows and columns as machines.
    rows: Vec<Vec<LinkSpeed>>,
}

impl Speed {
    /// Returns the time of a usual request, in seconds.
    pub fn usual_request_s(&self) -> f64 {
        f64::from(USUAL_PROMPT_TOKENS) / self.prefill_tokens_per_s
            + f64::from(USUAL_ANSWER_TOKENS) / self.decode_tokens_per_s
    }
}

impl Links {
    /// Creates links of one kind with their usual values, and loopback within each machine.
    pub fn usual(num_machines: usize, kind: LinkKind) -> Links {
        let link = |a, b| LinkSpeed::usual(if a == b { LinkKind::Loopback } else { kind });
        let row = |a| (0..num_machines).map(|b| link(a, b)).collect();
        Links { rows: (0..num_machines).map(row).collect() }
    }

    /// Sets the link between two machines, in both directions.
    ///
    /// # Panics
    /// If there is no machine of that index.
    pub fn set(&mut self, a: usize, b: usize, link: LinkSpeed) {
        self.rows[a][b] = link;
        self.rows[b][a] = link;
    }

    /// Returns the link between two machines.
    ///
    /// # Panics
    /// If there is no machine of that index.
    pub fn between(&self, a: usize, b: usize) -> LinkSpeed {
        self.rows[a][b]
    }

    /// Returns the links among some of the machines.
    ///
    /// # Panics
    /// If there is no machine of that index.
    pub fn among(&self, idxs: &[usize]) -> Links {
        let row = |&a: &usize| idxs.iter().map(|&b| self.rows[a][b]).collect();
        Links { rows: idxs.iter().map(row).collect() }
    }

    /// Returns the time in microseconds until each machine has sent `bytes` to every other one,
    /// sequentially.
    fn exchange_us(&self, bytes: f64) -> f64 {
        let sent_us = |a: usize| {
            let others = (0..self.rows.len()).filter(|&b| b != a).map(|b| self.rows[a][b]);
            let latency_us = others.clone().map(|link| link.latency_us).fold(0.0, f64::max);
            latency_us + others.map(|link| bytes / link.bytes_per_s * 1e6).sum::<f64>()
        };
        (0..self.rows.len()).map(sent_us).fold(0.0, f64::max)
    }
}

/// The expected speed of one sequence at a time, and of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Tokens per second while decoding one sequence, at half of the planned context.
    pub decode_tokens_per_s: f64,
    /// Tokens per second of [`BATCH_SEQUENCES`] such sequences together.
    pub batch_decode_tokens_per_s: f64,
    /// Tokens per second during prefill.
    pub prefill_tokens_per_s: f64,
    /// Fraction of the decoding time that ranks wait for each other, from 0 to 1.
    pub decode_waiting: f64,
}

/// Predicts the speed; `None` if the memory bandwidth of a machine is unknown.
pub(super) fn predict(
    model: &PlacementModel,
    split: &Split,
    nodes: &[&NodeOffer],
    links: &Links,
    context_tokens: u32,
) -> Option<Speed> {
    let batch = Batch::of(split);
    let shards = shards(model, split);
    let ranks = nodes.iter().zip(&shards).map(|(node, shard)| {
        let bytes_per_s = node.memory_bytes_per_s? as f64;
        let read_tokens = f64::from(context_tokens) / 2.0;
        let seen_tokens = read_tokens.min(f64::from(shard.cache.window_tokens));
        let kv_bytes = shard.cache.bytes_per_token as f64 * read_tokens
            + shard.cache.window_bytes_per_token as f64 * seen_tokens;
        // A state is read and written.
        let kv_bytes = kv_bytes + 2.0 * shard.cache.state_bytes as f64;
        let token_bytes = shard.active_bytes as f64;
        let macs_per_byte = match node.device {
            Device::Gpu => GPU_MACS_PER_BYTE,
            Device::Cpu | Device::Auto => CPU_MACS_PER_BYTE,
        };
        let token_macs = token_bytes * 8.0 / bits_per_weight(model);
        let read_us = |bytes: f64| bytes / (bytes_per_s * DECODE_EFFICIENCY) * 1e6;
        // The tokens of a step choose different experts, and all of these are read: in a chunk of
        // a prompt almost all experts, in a batch of sequences a part of them.
        let step_us = |num_tokens: u32, kv_bytes: f64| {
            let computing_us =
                token_macs * f64::from(num_tokens) / (bytes_per_s * macs_per_byte) * 1e6;
            computing_us.max(read_us(shard.read_bytes(num_tokens) + kv_bytes))
        };
        Some(StepTimes {
            decode_us: read_us(token_bytes + kv_bytes),
            batch_us: step_us(batch.num_sequences, f64::from(batch.num_sequences) * kv_bytes),
            prefill_us: step_us(CHUNK_TOKENS, 0.0),
        })
    });
    let ranks = ranks.collect::<Option<Vec<StepTimes>>>()?;
    let (computing, waiting) = match split {
        Split::Tensor(_) => tensor(model, &ranks, links),
        Split::Pipeline(_) => pipeline(model, &ranks, links, batch),
    };
    let decode_us = computing.decode_us + waiting.decode_us;
    let batch_us = computing.batch_us + waiting.batch_us;
    let prefill_us = computing.prefill_us + waiting.prefill_us;
    let tokens_per_s =
        |num_tokens: u32, us: f64| f64::from(num_tokens) * 1e6 / us.max(f64::MIN_POSITIVE);
    Some(Speed {
        decode_tokens_per_s: tokens_per_s(1, decode_us),
        batch_decode_tokens_per_s: tokens_per_s(BATCH_SEQUENCES, batch_us),
        prefill_tokens_per_s: tokens_per_s(CHUNK_TOKENS, prefill_us),
        decode_waiting: waiting.decode_us / decode_us.max(f64::MIN_POSITIVE),
    })
}

/// How [`BATCH_SEQUENCES`] sequences are divided into steps. The stages of a pipeline compute
/// different steps at the same time.
#[derive(Clone, Copy, Debug)]
struct Batch {
    /// Number of steps in which each sequence gets one token.
    num_steps: u32,
    /// Number of sequences in the largest of these steps.
    num_sequences: u32,
}

impl Batch {
    fn of(split: &Split) -> Batch {
        let num_steps = match split {
            Split::Tensor(_) => 1,
            Split::Pipeline(layers) => u32::try_from(layers.len()).unwrap_or(u32::MAX),
        };
        let num_steps = num_steps.clamp(1, BATCH_SEQUENCES);
        Batch { num_steps, num_sequences: BATCH_SEQUENCES.div_ceil(num_steps) }
    }
}

/// Times of one decoded token, of one token for each sequence of a batch, and of one chunk of a
/// prompt.
#[derive(Clone, Copy, Debug, Default)]
struct StepTimes {
    decode_us: f64,
    /// Of a rank: time of one of the [`Batch`]'s steps.
    batch_us: f64,
    prefill_us: f64,
}

/// Returns the times of computing and of waiting with tensor parallelism: ranks compute at the same
/// time and wait for each other at every all-reduce.
fn tensor(model: &PlacementModel, ranks: &[StepTimes], links: &Links) -> (StepTimes, StepTimes) {
    let slowest = |time: fn(&StepTimes) -> f64| ranks.iter().map(time).fold(0.0, f64::max);
    let computing = StepTimes {
        decode_us: slowest(|it| it.decode_us),
        batch_us: slowest(|it| it.batch_us),
        prefill_us: slowest(|it| it.prefill_us),
    };
    let sums = if 1 < ranks.len() { num_collectives(model) } else { 0.0 };
    let row_bytes = model.hidden_size as f64 * SUM_BYTES;
    // A large all-reduce is a reduce-scatter and an all-gather: each rank sends its part to every
    // other rank twice.
    let part_bytes = |num_rows: u32| 2.0 * f64::from(num_rows) * row_bytes / ranks.len() as f64;
    let waiting = StepTimes {
        decode_us: sums * links.exchange_us(row_bytes),
        batch_us: sums * links.exchange_us(part_bytes(BATCH_SEQUENCES)),
        prefill_us: sums * links.exchange_us(part_bytes(CHUNK_TOKENS)),
    };
    (computing, waiting)
}

/// Returns the times of computing and of waiting with pipeline parallelism: ranks compute a decoded
/// token one after the other, but chunks of a prompt and the steps of a batch at the same time, so
/// that the slowest rank determines the speed.
fn pipeline(
    model: &PlacementModel,
    ranks: &[StepTimes],
    links: &Links,
    batch: Batch,
) -> (StepTimes, StepTimes) {
    let row_size = model.hidden_size + model.beside_size;
    let row_bytes = row_size as f64 * model.element_bytes() as f64;
    let last = ranks.len() - 1;
    let hops = (0..last).map(|rank| links.between(rank, rank + 1));
    let hop_us = |link: LinkSpeed, num_rows: u32| {
        link.latency_us + f64::from(num_rows) * row_bytes / link.bytes_per_s * 1e6
    };
    let token_us = if last == 0 { 0.0 } else { hop_us(links.between(0, last), 0) };
    let round_us =
        |num_rows| hops.clone().map(|link| hop_us(link, num_rows)).sum::<f64>() + token_us;
    let slowest = |time: fn(&StepTimes) -> f64| ranks.iter().map(time).fold(0.0, f64::max);
    // Each sequence waits for the step of its token to pass all stages, and the slowest stage
    // computes all steps.
    let step_us: f64 = ranks.iter().map(|it| it.batch_us).sum();
    let batch_us = step_us.max(f64::from(batch.num_steps) * slowest(|it| it.batch_us));
    let computing = StepTimes {
        decode_us: ranks.iter().map(|it| it.decode_us).sum(),
        batch_us,
        prefill_us: slowest(|it| it.prefill_us),
    };
    let waiting = StepTimes {
        decode_us: round_us(1),
        batch_us: (step_us + round_us(batch.num_sequences) - batch_us).max(0.0),
        prefill_us: hops.map(|link| hop_us(link, CHUNK_TOKENS)).fold(0.0, f64::max),
    };
    (computing, waiting)
}

/// Counts the collectives of a step: the embedding's all-reduce, two for each layer, the gathering
/// of logits, and the one that shares the sampled token.
fn num_collectives(model: &PlacementModel) -> f64 {
    (2 * model.num_layers() + 3) as f64
}

/// Returns the bits per weight, including its share of scales and biases.
fn bits_per_weight(model: &PlacementModel) -> f64 {
    match model.quantization {
        Some(format) => f64::from(format.bits) + 32.0 / f64::from(format.group_size.max(1)),
        None => 8.0 * model.element_bytes() as f64,
    }
}
