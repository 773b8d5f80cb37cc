//! The scan as one kernel for GPUs, written once for Metal and CUDA.
//!
//! 32 lanes hold a row of a state, `key_dim / 32` elements each, and walk along the tokens.

use jackalope_mlx::fast::{GpuKernel, KernelOutputs, gated_delta_update, gpu_kernel};
use jackalope_mlx::{Array, ArrayType, Dtype, GpuKind, gpu_kind};

use crate::tokens::{Rule, Scanned, Tokens};

/// Number of lanes that compute together.
const LANES: i32 = 32;

/// Number of rows of a state that a group of threads computes.
const GROUP_ROWS: i32 = 4;

const INPUTS: [&str; 7] = ["q", "k", "v", "log_decay", "rate", "state_in", "seq"];
const OUTPUTS: [&str; 2] = ["results", "state_out"];

/// Body of the kernel. `{lane}`, `{row}` and `{head}` are this thread's indices, `{sum}` adds over the
/// lanes.
const BODY: &str = r"
const int lane = {lane};
const int row = {row};
const int head = {head};
if (row >= VALUE_DIM) return;
constexpr int OWN = KEY_DIM / 32;
const int sequence = head / VALUE_HEADS;
const int value_head = head % VALUE_HEADS;
const int key_head = value_head / (VALUE_HEADS / KEY_HEADS);
const int num_tokens = seq[0];
const int state_at = (head * VALUE_DIM + row) * KEY_DIM + OWN * lane;
float state[OWN];
for (int i = 0; i < OWN; ++i) state[i] = state_in[state_at + i];
for (int t = 0; t < num_tokens; ++t) {
  const int token = sequence * num_tokens + t;
  const int key_at = (token * KEY_HEADS + key_head) * KEY_DIM + OWN * lane;
  const int value_at = token * VALUE_HEADS + value_head;
  float found = 0.0f;
  for (int i = 0; i < OWN; ++i) {
    const int decay_at = VECTOR ? value_at * KEY_DIM + OWN * lane + i : value_at;
    state[i] *= exp(log_decay[decay_at]);
    if (DELTA) found += state[i] * k[key_at + i];
  }
  if (DELTA) found = {sum}(found);
  const float added = rate[value_at] * (v[value_at * VALUE_DIM + row] - found);
  float result = 0.0f;
  for (int i = 0; i < OWN; ++i) {
    state[i] += added * k[key_at + i];
    result += state[i] * q[key_at + i];
  }
  result = {sum}(result);
  if (lane == 0) results[value_at * VALUE_DIM + row] = result;
}
for (int i = 0; i < OWN; ++i) state_out[state_at + i] = state[i];
";

/// A sum over the lanes of a CUDA warp.
const CUDA_HEADER: &str = r"
__device__ inline float jackalope_lane_sum(float x) {
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}
";

/// The language of a kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum KernelLanguage {
    /// For GPUs of Macs.
    Metal,
    /// For GPUs of Nvidia.
    Cuda,
}

impl KernelLanguage {
    /// Returns the language of MLX's default device; `None` for a CPU.
    pub fn of_device() -> Option<KernelLanguage> {
        match gpu_kind()? {
            GpuKind::Metal => Some(KernelLanguage::Metal),
            GpuKind::Cuda => Some(KernelLanguage::Cuda),
        }
    }
}

/// The constants that a kernel is compiled with.
#[derive(Clone, Copy, Debug)]
pub struct KernelShape {
    /// What a token adds to the state.
    pub rule: Rule,
    /// Whether the state decays by a factor for each element of a key.
    pub decays_by_element: bool,
    /// Number of key heads.
    pub key_heads: i32,
    /// Number of value heads, a multiple of `key_heads`.
    pub value_heads: i32,
    /// Width of a key, a multiple of 32.
    pub key_dim: i32,
    /// Width of a value.
    pub value_dim: i32,
}

impl KernelShape {
    fn of(tokens: &Tokens<'_>) -> KernelShape {
        KernelShape {
            rule: tokens.rule,
            decays_by_element: tokens.log_decays.ndim() == 4,
            key_heads: tokens.keys.dim(2),
            value_heads: tokens.values.dim(2),
            key_dim: tokens.keys.dim(3),
            value_dim: tokens.values.dim(3),
        }
    }

    /// Returns the constants by their names in the source.
    pub fn constants(&self) -> [(&'static str, i32); 6] {
        [
            ("DELTA", i32::from(self.rule == Rule::Delta)),
            ("VECTOR", i32::from(self.decays_by_element)),
            ("KEY_HEADS", self.key_heads),
            ("VALUE_HEADS", self.value_heads),
            ("KEY_DIM", self.key_dim),
            ("VALUE_DIM", self.value_dim),
        ]
    }
}

/// Returns the body of the kernel in a language: inputs `q`, `k`, `v`, `log_decay`, `rate`, `state_in`
/// and `seq`, outputs `results` and `state_out`, constants as in [`KernelShape::constants`].
pub fn kernel_source(language: KernelLanguage) -> String {
    let [lane, row, head, sum] = match language {
        KernelLanguage::Metal => [
            "thread_position_in_grid.x",
            "thread_position_in_grid.y",
            "thread_position_in_grid.z",
            "simd_sum",
        ],
        KernelLanguage::Cuda => [
            "threadIdx.x",
            "blockIdx.y * blockDim.y + threadIdx.y",
            "blockIdx.z",
            "jackalope_lane_sum",
        ],
    };
    let named = [("{lane}", lane), ("{row}", row), ("{head}", head), ("{sum}", sum)];
    named.iter().fold(BODY.to_owned(), |body, (name, value)| body.replace(name, value))
}

/// Whether the kernel computes such tokens: any number of heads, keys of a multiple of 32 elements.
pub(crate) fn supports(tokens: &Tokens<'_>) -> bool {
    tokens.keys.dim(3) % LANES == 0
}

/// Numbers of key and value heads that MLX's own kernel for Metal computes, of 128 elements each; its
/// chunks are matrix products, which is faster for prompts.
const MLX_HEADS: [[i32; 2]; 4] = [[16, 32], [16, 48], [24, 24], [32, 32]];

/// Number of tokens from which MLX's own kernel is used.
const MLX_TOKENS_MIN: i32 = 16;

fn is_for_mlx(shape: &KernelShape, seq: i32) -> bool {
    shape.rule == Rule::Delta
        && !shape.decays_by_element
        && [shape.key_dim, shape.value_dim] == [128; 2]
        && MLX_HEADS.contains(&[shape.key_heads, shape.value_heads])
        && MLX_TOKENS_MIN <= seq
}

/// Computes the tokens with the kernel, or with MLX's own where it has one.
pub(crate) fn scan(tokens: &Tokens<'_>, state: &Array, language: KernelLanguage) -> Scanned {
    let shape = KernelShape::of(tokens);
    let Tokens { queries, keys, values, log_decays, rates, .. } = *tokens;
    if language == KernelLanguage::Metal && is_for_mlx(&shape, values.dim(1)) {
        let decays = log_decays.exp();
        let qkv = [queries, keys, values];
        let [results, state] = gated_delta_update(qkv, &decays, rates, state);
        return Scanned { results, state };
    }
    let seq = Array::from_slice(&[values.dim(1)], &[1]);
    let (source, header) = match language {
        KernelLanguage::Metal => (kernel_source(language), ""),
        KernelLanguage::Cuda => (kernel_source(language), CUDA_HEADER),
    };
    let kernel = GpuKernel {
        name: "jackalope_recurrence",
        inputs: &INPUTS,
        outputs: &OUTPUTS,
        source: &source,
        header,
        constants: &shape.constants(),
    };
    let rows = (shape.value_dim + GROUP_ROWS - 1) / GROUP_ROWS * GROUP_ROWS;
    let outputs = KernelOutputs {
        types: &[values, state].map(|x| ArrayType { shape: x.shape(), dtype: Dtype::F32 }),
        grid: [LANES, rows, values.dim(0) * shape.value_heads],
        group: [LANES, GROUP_ROWS, 1],
    };
    let outputs =
        gpu_kernel(&kernel, &[queries, keys, values, log_decays, rates, state, &seq], &outputs);
    let [results, state] = outputs.try_into().expect("the kernel has two outputs");
    Scanned { results, state }
}
