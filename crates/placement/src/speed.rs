//! Predicts the speed of a placement from memory and link bandwidths: decoding reads every weight
//! once per token. If all ranks hold a part of every layer, each layer waits for two all-reduce
//! operations. If they hold whole layers, a token passes from one rank to the next. The prediction
//! is good enough to compare placements.

use jackalope_protocol::Device;
use jackalope_protocol::split::Split;

use super::NodeOffer;
use super::dealing::shards;
use super::model::PlacementModel;

/// Fraction of the memory bandwidth that decoding reaches (BENCHMARKS.md: 61 to 71 %).
const DECODE_EFFICIENCY: f64 = 0.65;

/// Multiply-accumulate operations during prefill per byte of memory bandwidth. For the CPU as
/// measured: 302 tokens/s of 0.6 billion weights at 34 to 60 GB/s (BENCHMARKS.md). For Apple's GPUs
/// an assumption: about two thirds of the arithmetic throughput that the manufacturer states,
/// divided by the memory bandwidth.
const CPU_MACS_PER_BYTE: f64 = 4.0;
const GPU_MACS_PER_BYTE: f64 = 12.0;

/// Number of prompt tokens that are computed together.
const CHUNK_TOKENS: u32 = 512;

/// The request for which placements are compared: one turn of a conversation.
const USUAL_PROMPT_TOKENS: f64 = 1000.0;
const USUAL_ANSWER_TOKENS: f64 = 300.0;

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
        USUAL_PROMPT_TOKENS / self.prefill_tokens_per_s
            + USUAL_ANSWER_TOKENS / self.decode_tokens_per_s
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

/// The expected speed of one sequence at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Tokens per second while decoding, at half of the planned context.
    pub decode_tokens_per_s: f64,
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
        let macs = token_bytes * 8.0 / bits_per_weight(model) * f64::from(CHUNK_TOKENS);
        let read_us = |bytes: f64| bytes / (bytes_per_s * DECODE_EFFICIENCY) * 1e6;
        // The tokens of a chunk choose almost all experts between them, and all of these are read.
        let computing_us = macs / (bytes_per_s * macs_per_byte) * 1e6;
        Some(Computing {
            decode_us: read_us(token_bytes + kv_bytes),
            prefill_us: computing_us.max(read_us(shard.read_bytes(CHUNK_TOKENS))),
        })
    });
    let ranks = ranks.collect::<Option<Vec<Computing>>>()?;
    let (computing, waiting) = match split {
        Split::Tensor(_) => tensor(model, &ranks, links),
        Split::Pipeline(_) => pipeline(model, &ranks, links),
    };
    let decode_us = computing.decode_us + waiting.decode_us;
    let prefill_us = computing.prefill_us + waiting.prefill_us;
    Some(Speed {
        decode_tokens_per_s: 1e6 / decode_us.max(f64::MIN_POSITIVE),
        prefill_tokens_per_s: f64::from(CHUNK_TOKENS) * 1e6 / prefill_us.max(f64::MIN_POSITIVE),
        decode_waiting: waiting.decode_us / decode_us.max(f64::MIN_POSITIVE),
    })
}

/// Times of one decoded token and of one chunk of a prompt.
#[derive(Clone, Copy, Debug, Default)]
struct Computing {
    decode_us: f64,
    prefill_us: f64,
}

/// Returns the times of computing and of waiting with tensor parallelism: ranks compute at the same
/// time and wait for each other at every all-reduce.
fn tensor(model: &PlacementModel, ranks: &[Computing], links: &Links) -> (Computing, Computing) {
    let slowest = |time: fn(&Computing) -> f64| ranks.iter().map(time).fold(0.0, f64::max);
    let computing = Computing {
        decode_us: slowest(|it| it.decode_us),
        prefill_us: slowest(|it| it.prefill_us),
    };
    let sums = if 1 < ranks.len() { num_collectives(model) } else { 0.0 };
    let row_bytes = model.hidden_size as f64 * SUM_BYTES;
    // A large all-reduce is a reduce-scatter and an all-gather: each rank sends its part to every
    // other rank twice.
    let part_bytes = 2.0 * f64::from(CHUNK_TOKENS) * row_bytes / ranks.len() as f64;
    let waiting = Computing {
        decode_us: sums * links.exchange_us(row_bytes),
        prefill_us: sums * links.exchange_us(part_bytes),
    };
    (computing, waiting)
}

/// Returns the times of computing and of waiting with pipeline parallelism: ranks compute a decoded
/// token one after the other, but chunks of a prompt at the same time, so that the slowest rank
/// determines the speed.
fn pipeline(model: &PlacementModel, ranks: &[Computing], links: &Links) -> (Computing, Computing) {
    let row_size = model.hidden_size + model.beside_size;
    let row_bytes = row_size as f64 * model.element_bytes() as f64;
    let last = ranks.len() - 1;
    let hops = (0..last).map(|rank| links.between(rank, rank + 1));
    let hop_us =
        |link: LinkSpeed, rows: f64| link.latency_us + rows * row_bytes / link.bytes_per_s * 1e6;
    let token_us = if last == 0 { 0.0 } else { hop_us(links.between(0, last), 0.0) };
    let slowest = ranks.iter().map(|it| it.prefill_us).fold(0.0, f64::max);
    let computing =
        Computing { decode_us: ranks.iter().map(|it| it.decode_us).sum(), prefill_us: slowest };
    let waiting = Computing {
        decode_us: hops.clone().map(|link| hop_us(link, 1.0)).sum::<f64>() + token_us,
        prefill_us: hops.map(|link| hop_us(link, f64::from(CHUNK_TOKENS))).fold(0.0, f64::max),
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
