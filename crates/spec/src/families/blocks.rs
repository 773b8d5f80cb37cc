//! The tensors of the blocks that layers are made of.

use crate::model::{
    AttentionSpec, ExpertModules, ExpertsSpec, FeedForward, MlpSpec, QkNorm, RouterSpec,
    StackedModule,
};
use crate::tensor::{CutSegment, Dimension, TensorCut, TensorRole, TensorSpec};

impl TensorCut {
    /// Returns the cut of a tensor whose `len` rows all belong to one dimension.
    pub(super) fn whole_column(dimension: Dimension, len: usize) -> TensorCut {
        TensorCut::Column(vec![CutSegment { dimension, len }])
    }
}

/// Returns the weight of a matrix at `module`, which may be quantised.
pub(super) fn matrix(
    module: &str,
    role: TensorRole,
    shape: Vec<usize>,
    cut: TensorCut,
) -> TensorSpec {
    let name = format!("{module}.weight");
    TensorSpec { name, role, shape, cut, is_quantizable: true, per_expert: None }
}

/// Returns a tensor of one dimension, which is never quantised.
pub(super) fn vector(name: &str, role: TensorRole, len: usize, cut: TensorCut) -> TensorSpec {
    let name = name.to_owned();
    TensorSpec { name, role, shape: vec![len], cut, is_quantizable: false, per_expert: None }
}

/// A feed-forward block.
pub(super) struct Block {
    pub(super) feed_forward: FeedForward,
    pub(super) tensors: Vec<TensorSpec>,
}

/// A product `x · weightᵀ`, perhaps with a bias.
pub(super) struct Linear {
    pub(super) role: TensorRole,
    pub(super) output: usize,
    pub(super) input: usize,
    pub(super) has_bias: bool,
}

impl Linear {
    /// Returns the tensors of a product of which each rank computes a part of the output.
    pub(super) fn column(self, module: &str, dimension: Dimension) -> Vec<TensorSpec> {
        let cut = TensorCut::whole_column(dimension, self.output);
        self.tensors(module, cut.clone(), cut)
    }

    /// Returns the tensors of a product of which each rank has a part of the input. The bias is
    /// added to the sum over the ranks.
    pub(super) fn row(self, module: &str, dimension: Dimension) -> Vec<TensorSpec> {
        self.tensors(module, TensorCut::Row(dimension), TensorCut::Replicated)
    }

    fn tensors(self, module: &str, cut: TensorCut, bias_cut: TensorCut) -> Vec<TensorSpec> {
        let Linear { role, output, input, has_bias } = self;
        let mut tensors = vec![matrix(module, role, vec![output, input], cut)];
        if has_bias {
            tensors.push(vector(&format!("{module}.bias"), role, output, bias_cut));
        }
        tensors
    }
}

/// Returns the tensors of grouped-query attention at `module`.
pub(super) fn attention(module: &str, hidden: usize, spec: &AttentionSpec) -> Vec<TensorSpec> {
    let &AttentionSpec { heads, kv_heads, head_dim, has_qkv_bias, has_output_bias, .. } = spec;
    let role = TensorRole::Mixer;
    let project = |name: &str, heads: usize, dimension| {
        let linear =
            Linear { role, output: heads * head_dim, input: hidden, has_bias: has_qkv_bias };
        linear.column(&format!("{module}.{name}"), dimension)
    };
    let output =
        Linear { role, output: hidden, input: heads * head_dim, has_bias: has_output_bias };
    let mut tensors = project("q_proj", heads, Dimension::Heads);
    tensors.extend(project("k_proj", kv_heads, Dimension::KvHeads));
    tensors.extend(project("v_proj", kv_heads, Dimension::KvHeads));
    tensors.extend(output.row(&format!("{module}.o_proj"), Dimension::Heads));
    let norms = [("q_norm", heads, Dimension::Heads), ("k_norm", kv_heads, Dimension::KvHeads)];
    for (name, heads, dimension) in norms {
        let (len, cut) = match spec.qk_norm {
            None => continue,
            Some(QkNorm::PerHead) => (head_dim, TensorCut::Replicated),
            Some(QkNorm::AllHeads) => {
                let len = heads * head_dim;
                (len, TensorCut::whole_column(dimension, len))
            }
        };
        tensors.push(vector(&format!("{module}.{name}.weight"), TensorRole::Norm, len, cut));
    }
    tensors
}

/// Returns a dense feed-forward block at `module`.
pub(super) fn mlp(module: &str, hidden: usize, spec: MlpSpec) -> Block {
    let tensors = gated(module, hidden, spec.inner, Dimension::Inner, spec.has_bias);
    Block { feed_forward: FeedForward::Mlp(spec), tensors }
}

/// Returns the tensors of `down(silu(gate(x)) * up(x))` at `module`.
fn gated(
    module: &str,
    hidden: usize,
    inner: usize,
    dimension: Dimension,
    has_bias: bool,
) -> Vec<TensorSpec> {
    let role = TensorRole::Mlp;
    let inward = |name: &str| {
        let linear = Linear { role, output: inner, input: hidden, has_bias };
        linear.column(&format!("{module}.{name}"), dimension)
    };
    let outward = Linear { role, output: hidden, input: inner, has_bias };
    let mut tensors = inward("gate_proj");
    tensors.extend(inward("up_proj"));
    tensors.extend(outward.row(&format!("{module}.down_proj"), dimension));
    tensors
}

/// The names of a block of routed experts.
pub(super) struct ExpertNames {
    /// Below the block: the stacked matrices of all experts.
    pub(super) stacked: &'static str,
    /// Below the block: what the number of an expert follows, in checkpoints with a tensor per
    /// expert.
    pub(super) each: &'static str,
    /// The projections of an expert there: gate, up and down.
    pub(super) projections: [&'static str; 3],
    /// Below the block: what is added to the scores by which experts are chosen, if anything.
    pub(super) score_bias: Option<&'static str>,
    /// Below the block: the expert that every token passes.
    pub(super) shared: &'static str,
    /// Below the block: what weighs that expert, if anything.
    pub(super) shared_gate: Option<&'static str>,
}

impl ExpertNames {
    /// The names of Qwen's checkpoints.
    pub(super) const QWEN: ExpertNames = ExpertNames {
        stacked: "switch_mlp",
        each: "experts",
        projections: ["gate_proj", "up_proj", "down_proj"],
        score_bias: None,
        shared: "shared_expert",
        shared_gate: None,
    };
}

/// The sizes and the router of a block of experts.
#[derive(Clone, Copy)]
pub(super) struct ExpertSizes {
    pub(super) num_experts: usize,
    pub(super) experts_per_token: usize,
    pub(super) inner: usize,
    pub(super) shared_inner: Option<usize>,
    pub(super) router: RouterSpec,
}

/// Returns a block of routed experts at `module`. Its router is at `gate`.
pub(super) fn experts(
    module: &str,
    hidden: usize,
    names: &ExpertNames,
    sizes: ExpertSizes,
) -> Block {
    let ExpertSizes { num_experts, experts_per_token, inner, shared_inner, router } = sizes;
    let at = |name: &str| format!("{module}.{name}");
    let routing = |module: &str, rows: usize| {
        matrix(module, TensorRole::Router, vec![rows, hidden], TensorCut::Replicated)
    };
    let modules = ExpertModules {
        router: at("gate"),
        selection_bias: names.score_bias.map(at),
        experts: [0, 1, 2].map(|idx| StackedModule {
            stacked: at(&format!("{}.{}", names.stacked, ExpertNames::QWEN.projections[idx])),
            each: [at(&format!("{}.", names.each)), format!(".{}", names.projections[idx])],
        }),
        shared: shared_inner.map(|_| at(names.shared)),
        shared_gate: names.shared_gate.map(at),
    };
    let mut tensors = vec![routing(&modules.router, num_experts)];
    if let Some(name) = &modules.selection_bias {
        tensors.push(vector(name, TensorRole::Router, num_experts, TensorCut::Replicated));
    }
    let [gate, up, down] = &modules.experts;
    let column = TensorCut::whole_column(Dimension::ExpertInner, inner);
    let row = TensorCut::Row(Dimension::ExpertInner);
    let projections = [
        (gate, [inner, hidden], &column),
        (up, [inner, hidden], &column),
        (down, [hidden, inner], &row),
    ];
    for (StackedModule { stacked, each: [before, after] }, [output, input], cut) in projections {
        let shape = vec![num_experts, output, input];
        let per_expert = Some([before.clone(), format!("{after}.weight")]);
        let stacked = matrix(stacked, TensorRole::Experts, shape, cut.clone());
        tensors.push(TensorSpec { per_expert, ..stacked });
    }
    if let (Some(inner), Some(shared)) = (shared_inner, &modules.shared) {
        tensors.extend(gated(shared, hidden, inner, Dimension::SharedInner, false));
    }
    if let Some(gate) = &modules.shared_gate {
        tensors.push(routing(gate, 1));
    }
    let spec = ExpertsSpec { num_experts, experts_per_token, inner, shared_inner, router, modules };
    Block { feed_forward: FeedForward::Experts(Box::new(spec)), tensors }
}
