//! Measures the experts of a mixture, whole and divided among two ranks: a rank's half of every expert should take half
//! of the time.

use half::bf16;
use jackalope_kernels::{
    ActivationFunction, Elements, ElementsMut, ExpertRows, Matrix, QuantFormat, QuantMatrix,
    QuantMode, RouterConfig, Scales, Scores, TermColumns, Threads, divisible_expert_matmul,
    expert_matmul, gated, route, scale_rows,
};

use super::cases::filled;
use super::{Call, Report, Work};

/// Width of the stream of Qwen3 30B-A3B.
const HIDDEN: usize = 2048;

/// Inner width of an expert.
const INNER: usize = 768;

const NUM_EXPERTS: usize = 128;

/// Number of experts that each token chooses.
const NUM_CHOSEN: usize = 8;

/// Columns that are never divided.
const CHUNK: usize = 64;

const FORMAT: QuantFormat = QuantFormat { mode: QuantMode::Affine, bits: 4, group_size: 64 };

pub(super) fn measure_all(report: &mut Report<'_>) {
    let name = |tokens: usize| format!("affine-4 group 64, experts, {tokens} tokens");
    let wanted = [1, 8, 512].map(|tokens| report.wants(&name(tokens)).then_some(tokens));
    let mut weights = None;
    for tokens in wanted.into_iter().flatten() {
        let weights = weights.get_or_insert_with(Weights::new);
        // Few tokens choose other experts in each call, so that their weights come from memory.
        let calls = 16_usize.div_ceil(tokens);
        let rows: Vec<ExpertRows> = (0..calls).map(|call| choices(tokens, call)).collect();
        let x = filled(tokens * HIDDEN, |idx| bf16::from_f32((idx % 251) as f32 - 125.0));
        let macs = calls * tokens * NUM_CHOSEN * 3 * HIDDEN * INNER;
        let work = Work { bytes: 0, macs, is_whole: true };
        let x = Elements::Bf16(&x);
        let block = |inner: usize, threads: &Threads| {
            for rows in &rows {
                let sums = weights.multiply(x, rows, inner, threads);
                assert_eq!(sums.len(), tokens * HIDDEN, "a sum each");
            }
        };
        report.compare(
            &name(tokens),
            work,
            Call { name: "whole", run: |threads: &Threads| block(INNER, threads) },
            Call { name: "half", run: |threads: &Threads| block(INNER / 2, threads) },
        );
    }
}

/// Returns experts for each token, chosen by chance; others for each `seed`.
fn choices(tokens: usize, seed: usize) -> ExpertRows {
    let logits = filled(tokens * NUM_EXPERTS, |idx| {
        let hash = ((seed << 20 | idx) as u32).wrapping_mul(2_654_435_761) ^ 0x9e37;
        (hash.wrapping_mul(0x85eb_ca6b).rotate_left(13) % 1009) as f32 / 1009.0
    });
    let config = RouterConfig {
        scores: Scores::Softmax,
        selection_bias: None,
        groups: None,
        num_chosen: NUM_CHOSEN,
        given: None,
        normalization_eps: Some(0.0),
        scale: 1.0,
        expert_scales: None,
    };
    route(&logits, NUM_EXPERTS, &config)
}

/// Codes and scales for one of an expert's matrices, for all experts.
struct Weights {
    words: [Vec<u32>; 3],
    scales: Vec<bf16>,
}

impl Weights {
    fn new() -> Weights {
        let elements = NUM_EXPERTS * HIDDEN * INNER;
        let words =
            |seed: u32| filled(elements / 8, |idx| (idx as u32 + seed).wrapping_mul(2_654_435_761));
        let scales = filled(elements / 64, |_| bf16::from_f32(1.0 / 1024.0));
        Weights { words: [words(1), words(2), words(3)], scales }
    }

    /// Returns the matrices `[out, input]` of all experts.
    fn matrix(&self, idx: usize, out: usize, input: usize) -> Matrix<'_> {
        let elements = NUM_EXPERTS * out * input;
        let scales = Elements::Bf16(&self.scales[..elements / 64]);
        Matrix::Quantized(QuantMatrix {
            format: FORMAT,
            out: NUM_EXPERTS * out,
            input,
            words: &self.words[idx][..elements / 8],
            scales: Scales::Elements(scales),
            biases: Some(scales),
        })
    }

    /// Computes a block of experts with `inner` columns each, from the stream to the sums `[tokens, HIDDEN]`.
    fn multiply(
        &self,
        x: Elements<'_>,
        rows: &ExpertRows,
        inner: usize,
        threads: &Threads,
    ) -> Vec<f64> {
        let gate_up = [self.matrix(0, inner, HIDDEN), self.matrix(1, inner, HIDDEN)];
        let [gate, mut up] = expert_matmul(x, rows, gate_up.each_ref(), threads);
        scale_rows(&mut up, rows.weights());
        let mut values = vec![bf16::ZERO; up.len()];
        gated(ActivationFunction::Silu, &gate, &up, ElementsMut::Bf16(&mut values), threads);
        let down = self.matrix(2, HIDDEN, inner);
        let terms = TermColumns::Divided(CHUNK);
        divisible_expert_matmul(Elements::Bf16(&values), rows, &down, terms, threads)
    }
}
