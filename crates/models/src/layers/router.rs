//! The router of a mixture of experts.

use jackalope_cache::float;
use std::sync::{Arc, OnceLock};

use jackalope_kernels::{self as kernels, Elements, ElementsMut, ExpertRows, RouterConfig, Scores};
use jackalope_kernels::{ExpertGroups, Floats, Threads};
use jackalope_mlx::{Array, Dtype, Pinned, dim};
use jackalope_protocol::TokenId;

use super::token_rows::TokenRows;
use crate::split::Cut;
use jackalope_parallel::activation::stock_capped;
use jackalope_parallel::kernel::{MatrixCut, WeightMatrix, pinned};
use jackalope_parallel::norm::{Norm, NormKernel};
use jackalope_parallel::{Compute, Parallel};
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// Settings of a router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouterSettings {
    pub(crate) num_experts: usize,
    /// Number of experts after these that return what they read.
    pub(crate) num_identity: usize,
    /// Number of experts of a token.
    pub(crate) num_chosen: usize,
    /// Whether the logits have biases.
    pub(crate) has_bias: bool,
    /// How logits become the scores by which experts are chosen.
    pub(crate) scores: Scores,
    /// Set if experts are chosen from the best groups only.
    pub(crate) groups: Option<ExpertGroups>,
    /// With a cap, a logit becomes `cap * tanh(logit / cap)`.
    pub(crate) logit_cap: Option<f32>,
    /// Set if the weights of the chosen experts are divided by their sum plus this.
    pub(crate) normalization_eps: Option<f32>,
    /// Factor of the weights.
    pub(crate) scale: f32,
}

/// The tensors of a router beside its matrix.
pub(crate) struct RouterVectors<'a> {
    /// Bias, added to the scores for the choice only, `[experts]`.
    pub(crate) selection_bias: Option<Weights<'a>>,
    /// Factors of the experts' weights, `[experts]`.
    pub(crate) expert_scales: Option<Weights<'a>>,
    /// Norm of what the router reads.
    pub(crate) norm: Option<Norm>,
    /// The experts of each token, if they are not chosen by their scores.
    pub(crate) token_experts: Option<TokenExperts<'a>>,
}

/// A table of the experts of each token, `[vocab, chosen]`.
pub(crate) struct TokenExperts<'a> {
    pub(crate) w: Weights<'a>,
    /// Number of tokens.
    pub(crate) vocab: usize,
}

/// Chooses the experts of each token. Every rank holds the whole router and must choose the same
/// experts.
#[derive(Debug)]
pub(crate) struct Router {
    settings: RouterSettings,
    gate: WeightMatrix, // [experts, hidden]
    /// The gate for the kernels, f32 `[experts, hidden]`: in this form, all CPUs compute the same
    /// bits. `None` if MLX computes.
    plain_gate: Option<Pinned>,
    bias: Option<Array>,           // f32 [experts]
    selection_bias: Option<Array>, // f32 [experts]
    expert_scales: Option<Array>,  // f32 [experts]
    token_experts: Option<Array>,  // i32 [vocab, chosen]
    norm: Option<Norm>,
    hidden: usize,
    dtype: Dtype,
}

/// The experts of each token, for MLX.
#[derive(Debug)]
pub(super) struct StockRoutes {
    /// Experts of each token, `[tokens, chosen]`.
    pub(super) experts: Array,
    /// Their weights, f32 `[tokens, chosen]`.
    pub(super) weights: Array,
    /// Sum of the weights of those that return what they read, f32 `[tokens, 1]`, if there are such
    /// experts. Among `experts`, each of these is expert 0 with the weight 0.
    pub(super) identity: Option<Array>,
}

/// The experts of each token, for the kernels.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) experts: ExpertRows,
    /// Sum of the weights of those that return what they read, `[tokens]`, if there are such experts.
    pub(super) identity: Option<Vec<f32>>,
}

impl RouterSettings {
    /// Returns the number of experts, those included that return what they read.
    fn num_scores(&self) -> usize {
        self.num_experts + self.num_identity
    }
}

impl Router {
    /// Loads the router with its matrix at `gate`.
    pub(crate) fn load(
        gate: &Weights<'_>,
        vectors: RouterVectors<'_>,
        hidden: usize,
        settings: RouterSettings,
        parallel: &Parallel,
    ) -> Result<Router, LoadError> {
        let num_experts = settings.num_scores();
        let rows = Cut::of_all_ranks(num_experts);
        let matrix = WeightMatrix::load(gate, MatrixCut::Output { output: &rows, input: hidden })?;
        let logit_bias = settings
            .has_bias
            .then(|| gate.floats_as(Dtype::F32, "bias", &[num_experts], Part::Whole));
        let load = |w: &Weights<'_>| w.vector_as(Dtype::F32, num_experts, Part::Whole);
        let RouterVectors { selection_bias, expert_scales, norm, token_experts } = vectors;
        let table = |it: &TokenExperts<'_>| {
            it.w.indices(&[it.vocab, settings.num_chosen], settings.num_scores())
        };
        let plain_gate = match parallel.compute() {
            Compute::Kernels(_) => Some(pinned(&matrix.plain(Dtype::F32)?)),
            Compute::Stock => None,
        };
        Ok(Router {
            settings,
            gate: matrix,
            plain_gate,
            bias: logit_bias.transpose()?,
            selection_bias: selection_bias.as_ref().map(load).transpose()?,
            expert_scales: expert_scales.as_ref().map(load).transpose()?,
            token_experts: token_experts.as_ref().map(table).transpose()?,
            norm,
            hidden,
            dtype: gate.dtype(),
        })
    }

    /// Returns the router for use inside a primitive.
    ///
    /// # Panics
    /// Panics if it reads tokens, and there are none.
    pub(super) fn kernel(&self, tokens: Option<&TokenRows>) -> RouterKernel {
        let gate = self.plain_gate.clone().expect("the kernels' gate is there if they compute");
        let selection_bias = self.selection_bias.as_ref().map(pinned);
        let bias = self.bias.as_ref().map(pinned);
        RouterKernel {
            settings: self.settings,
            gate,
            bias,
            selection_bias,
            expert_scales: self.expert_scales.as_ref().map(pinned),
            token_experts: self.token_experts.as_ref().map(|table| {
                let tokens = tokens.expect("a router that reads tokens gets them");
                (pinned(table), Arc::clone(&tokens.host))
            }),
            norm: self.norm.as_ref().map(Norm::kernel),
            hidden: self.hidden,
            dtype: self.dtype,
        }
    }

    /// Chooses experts for `x` `[tokens, hidden]` with MLX.
    ///
    /// # Panics
    /// Panics if it reads tokens, and there are none.
    pub(super) fn stock(&self, x: &Array, tokens: Option<&TokenRows>) -> StockRoutes {
        let settings = &self.settings;
        let x = self.norm.as_ref().map_or(x.clone(), |norm| norm.stock(x));
        let logits = self.gate.stock_product(&x.astype(self.dtype)).astype(Dtype::F32);
        let logits = self.bias.as_ref().map_or(logits.clone(), |bias| logits.add(bias));
        let logits = settings.logit_cap.map_or(logits.clone(), |cap| stock_capped(&logits, cap));
        let scores = match settings.scores {
            Scores::Softmax => logits.softmax(-1),
            Scores::SoftmaxOfChosen | Scores::SigmoidOfChosen | Scores::SparseMixer { .. } => {
                logits
            }
            Scores::Sigmoid => logits.sigmoid(),
            Scores::SqrtSoftplus => logits.logaddexp(&Array::scalar(0.0)).sqrt(),
        };
        let experts = match &self.token_experts {
            Some(table) => {
                let tokens = tokens.and_then(|tokens| tokens.device.as_ref());
                let tokens = tokens.expect("a router that reads tokens gets them");
                table.take(tokens, 0).astype(Dtype::U32)
            }
            None => self.stock_best(&scores),
        };
        let mut weights = scores.take_along_axis(&experts, -1);
        weights = match settings.scores {
            Scores::SoftmaxOfChosen => weights.softmax(-1),
            Scores::SigmoidOfChosen => weights.sigmoid(),
            Scores::SparseMixer { jitter } => mixed(&scores, &experts, jitter),
            Scores::Softmax | Scores::Sigmoid | Scores::SqrtSoftplus => weights,
        };
        if let Some(eps) = settings.normalization_eps {
            let sum = weights.sum(-1, true).add(&Array::scalar(eps));
            weights = weights.div(&sum);
        }
        if settings.scale != 1.0 {
            weights = &weights * settings.scale;
        }
        if let Some(scales) = &self.expert_scales {
            weights = weights.mul(&scales.take(&experts, 0));
        }
        match settings.num_identity {
            0 => StockRoutes { experts, weights, identity: None },
            _ => without_identity(&experts, &weights, settings.num_experts),
        }
    }
}

impl Router {
    /// Returns the experts with the best scores `[tokens, experts]`.
    fn stock_best(&self, scores: &Array) -> Array {
        let biased = self.selection_bias.as_ref().map(|bias| scores.add(bias));
        let ranked = biased.unwrap_or_else(|| scores.clone());
        let ranked = match self.settings.groups {
            Some(groups) => within_groups(&ranked, groups),
            None => ranked,
        };
        ranked.neg().argsort(-1).slice_axis(1, 0, dim(self.settings.num_chosen))
    }
}

/// Takes the experts from `num_experts` on out of the experts of each token, which return what they
/// read.
fn without_identity(experts: &Array, weights: &Array, num_experts: usize) -> StockRoutes {
    let indices = experts.astype(Dtype::I32);
    let has_matrices = indices.less(&Array::from_slice(&[dim(num_experts)], &[1]));
    let [no_weight, no_index] = [Dtype::F32, Dtype::I32].map(|dtype| Array::zeros(&[1], dtype));
    let identity = Array::where_(&has_matrices, &no_weight, weights).sum(-1, true);
    let indices = Array::where_(&has_matrices, &indices, &no_index);
    StockRoutes {
        experts: indices.astype(experts.dtype()),
        weights: Array::where_(&has_matrices, weights, &no_weight),
        identity: Some(identity),
    }
}

/// Returns the weights of [`Scores::SparseMixer`], `[tokens, chosen]`, for experts in the order of
/// their logits.
fn mixed(logits: &Array, experts: &Array, jitter: f32) -> Array {
    let nothing = Array::scalar(f32::NEG_INFINITY);
    let numbers = Array::arange(logits.dim(1), Dtype::I32).expand_dims(0);
    let experts = experts.astype(Dtype::I32);
    let mut left = logits.clone();
    let weights = (0..experts.dim(1)).map(|idx| {
        let expert = experts.slice_axis(1, idx, idx + 1);
        let top = logits.take_along_axis(&expert, -1);
        let distance = top.sub(logits).div(&logits.abs().maximum(&top));
        let is_far = Array::scalar(2.0 * jitter).less(&distance);
        let near = Array::where_(&is_far, &nothing, &left).softmax(-1);
        left = Array::where_(&numbers.equal(&expert), &nothing, &left);
        near.take_along_axis(&expert, -1)
    });
    let weights: Vec<Array> = weights.collect();
    Array::concatenate(&weights.iter().collect::<Vec<_>>(), 1)
}

/// Replaces the scores of all but the best groups.
fn within_groups(scores: &Array, groups: ExpertGroups) -> Array {
    let (tokens, experts) = (scores.dim(0), scores.dim(1));
    let count = dim(groups.count);
    let grouped = scores.reshape(&[tokens, count, experts / count]);
    let best = grouped.neg().argsort(-1).slice_axis(2, 0, dim(groups.best).min(experts / count));
    let sums = grouped.take_along_axis(&best, -1).sum(-1, false); // [tokens, groups]
    // A group is kept if its rank among the groups is low enough.
    let rank = sums.neg().argsort(-1).argsort(-1);
    let kept = rank.astype(Dtype::I32).less(&Array::from_slice(&[dim(groups.chosen)], &[1]));
    let excluded = Array::scalar_of(groups.excluded, scores.dtype());
    Array::where_(&kept.expand_dims(2), &grouped, &excluded).reshape(&[tokens, experts])
}

/// A router for the kernels.
#[derive(Debug)]
pub(super) struct RouterKernel {
    settings: RouterSettings,
    gate: Pinned, // f32 [experts, hidden]
    bias: Option<Pinned>,
    selection_bias: Option<Pinned>,
    expert_scales: Option<Pinned>,
    /// The experts of each token, and the tokens of the rows.
    token_experts: Option<(Pinned, Arc<OnceLock<Vec<TokenId>>>)>,
    norm: Option<NormKernel>,
    hidden: usize,
    dtype: Dtype,
}

impl RouterKernel {
    /// Chooses experts for `x` `[tokens, hidden]`.
    pub(super) fn route(&self, x: Elements<'_>, threads: &Threads) -> Routes {
        let RouterSettings { num_identity, num_chosen, .. } = self.settings;
        let num_experts = self.settings.num_scores();
        let gate = kernels::DenseMatrix {
            out: num_experts,
            input: self.hidden,
            values: Elements::F32(self.gate.values::<f32>()),
        };
        let mut logits = vec![0.0; x.len() / self.hidden * num_experts];
        let normed = self.norm.as_ref().map(|norm| {
            let mut normed = Floats::zeros(float(self.dtype), x.len());
            norm.norm(x, normed.elements_mut(), threads);
            normed
        });
        let x = normed.as_ref().map_or(x, Floats::elements);
        kernels::matmul(x, &gate, ElementsMut::F32(&mut logits), threads);
        if let Some(bias) = &self.bias {
            kernels::add_bias(&mut logits, Elements::F32(bias.values::<f32>()), threads);
        }
        if let Some(cap) = self.settings.logit_cap {
            kernels::scale_logits(&mut logits, 1.0, Some(cap), threads);
        }
        let given = self.token_experts.as_ref().map(|(table, tokens)| {
            let tokens = tokens.get().expect("the stream comes with its tokens").iter();
            let rows = tokens.map(|token| *token as usize * num_chosen);
            let experts = rows.flat_map(|row| &table.values::<i32>()[row..row + num_chosen]);
            experts.map(|expert| *expert as u32).collect::<Vec<u32>>()
        });
        let config = RouterConfig {
            scores: self.settings.scores,
            selection_bias: self.selection_bias.as_ref().map(|bias| bias.values::<f32>()),
            groups: self.settings.groups,
            num_chosen,
            given: given.as_deref(),
            normalization_eps: self.settings.normalization_eps,
            scale: self.settings.scale,
            expert_scales: self.expert_scales.as_ref().map(|it| it.values::<f32>()),
        };
        let mut experts = kernels::route(&logits, num_experts, &config);
        let identity = (0 < num_identity).then(|| experts.split_off_last(num_identity));
        Routes { experts, identity }
    }
}
