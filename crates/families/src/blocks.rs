//! The tensors of the blocks that layers are made of.

use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, count, experts_per_token};
use jackalope_spec::{
    Activation, AttentionModules, AttentionSpec, BlockChoice, CacheKind, CutSegment, Dimension,
    ExpertLatent, ExpertModules, ExpertsSpec, FeedForward, FusedForm, FusedSource, InwardModules,
    Mixer, MlpModules, MlpSpec, OutputGate, PoolChoice, Presence, QkNorm, QkvModules, RouterGroups,
    RouterSpec, StackedModule, TensorCut, TensorRole, TensorSpec, ValueKind,
};

/// Returns the weight of a matrix at `module`, which may be quantised.
pub(super) fn matrix(
    module: &str,
    role: TensorRole,
    shape: Vec<usize>,
    cut: TensorCut,
) -> TensorSpec {
    let name = format!("{module}.weight");
    TensorSpec {
        name,
        role,
        shape,
        cut,
        is_quantizable: true,
        per_expert: None,
        fused: Vec::new(),
        presence: Presence::Always,
    }
}

/// Returns a tensor of one dimension, which is never quantised.
pub(super) fn vector(name: &str, role: TensorRole, len: usize, cut: TensorCut) -> TensorSpec {
    let name = name.to_owned();
    TensorSpec {
        name,
        role,
        shape: vec![len],
        cut,
        is_quantizable: false,
        per_expert: None,
        fused: Vec::new(),
        presence: Presence::Always,
    }
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

    /// Returns the tensors of a product that every rank computes.
    pub(super) fn whole(self, module: &str) -> Vec<TensorSpec> {
        self.tensors(module, TensorCut::Replicated, TensorCut::Replicated)
    }

    /// Returns the tensors of several products in one: rows of these dimensions follow one another.
    pub(super) fn segments(self, module: &str, rows: &[(Dimension, usize)]) -> Vec<TensorSpec> {
        let segment = |&(dimension, len): &(Dimension, usize)| CutSegment { dimension, len };
        let cut = TensorCut::Column(rows.iter().map(segment).collect());
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

/// A mixer.
pub(super) struct MixerBlock {
    pub(super) mixer: Mixer,
    pub(super) cache: CacheKind,
    pub(super) tensors: Vec<TensorSpec>,
}

/// Returns grouped-query attention at `module`, with the names of Llama's checkpoints.
pub(super) fn attention(module: &str, hidden: usize, mut spec: AttentionSpec) -> MixerBlock {
    spec.modules = AttentionModules::at(module);
    attention_of(hidden, spec)
}

/// Returns grouped-query attention.
pub(super) fn attention_of(hidden: usize, spec: AttentionSpec) -> MixerBlock {
    let tensors = attention_tensors(hidden, &spec);
    MixerBlock { cache: spec.cache(), mixer: Mixer::Attention(Box::new(spec)), tensors }
}

/// Returns the tensors of grouped-query attention.
pub(super) fn attention_tensors(hidden: usize, spec: &AttentionSpec) -> Vec<TensorSpec> {
    let &AttentionSpec { heads, kv_heads, head_dim, value_dim, .. } = spec;
    let &AttentionSpec { has_qkv_bias, has_output_bias, .. } = spec;
    let role = TensorRole::Mixer;
    let (queries, keys, values) = (heads * head_dim, kv_heads * head_dim, kv_heads * value_dim);
    let inward = |output: usize| Linear { role, output, input: hidden, has_bias: has_qkv_bias };
    let mut tensors = match &spec.modules.qkv {
        QkvModules::Apart([q, k, v]) => {
            let has_gates = spec.output_gate == Some(OutputGate::Elements);
            let rows = if has_gates { 2 * queries } else { queries };
            let mut tensors = inward(rows).column(q, Dimension::Heads);
            if spec.source_layer.is_none() {
                tensors.extend(inward(keys).column(k, Dimension::KvHeads));
                if spec.values != ValueKind::NormalizedKeys {
                    tensors.extend(inward(values).column(v, Dimension::KvHeads));
                }
            }
            tensors
        }
        QkvModules::Stacked(module) | QkvModules::Grouped(module) => {
            let rows = [(Dimension::Heads, queries), (Dimension::KvHeads, keys + values)];
            inward(queries + keys + values).segments(module, &rows)
        }
    };
    let gate = match spec.output_gate {
        Some(OutputGate::Heads(name) | OutputGate::SoftplusHeads(name)) => Some((name, heads)),
        Some(OutputGate::Apart(name)) => Some((name, heads * value_dim)),
        Some(OutputGate::Elements) | None => None,
    };
    if let Some((name, output)) = gate {
        let gate = Linear { role, output, input: hidden, has_bias: false };
        let module = format!("{}.{name}", spec.modules.block);
        tensors.extend(gate.column(&module, Dimension::Heads));
    }
    let results = heads * value_dim;
    let output = Linear { role, output: hidden, input: results, has_bias: has_output_bias };
    tensors.extend(output.row(&spec.modules.output, Dimension::Heads));
    if let Some(name) = spec.sinks {
        let cut = TensorCut::whole_column(Dimension::Heads, heads);
        tensors.push(vector(&format!("{}.{name}", spec.modules.block), role, heads, cut));
    }
    let block = &spec.modules.block;
    tensors.extend(spec.blocks.iter().flat_map(|it| index_tensors(hidden, block, it)));
    tensors.extend(spec.pools.iter().flat_map(|it| pool_tensors(hidden, block, it)));
    let norms = [(heads, Dimension::Heads), (kv_heads, Dimension::KvHeads)];
    let has_key_norm = spec.source_layer.is_none() || spec.qk_norm == Some(QkNorm::OfSharedKeys);
    let num_norms = if has_key_norm { 2 } else { 1 };
    for (module, (heads, dimension)) in spec.modules.qk_norms.iter().zip(norms).take(num_norms) {
        let (shape, cut) = match spec.qk_norm {
            None | Some(QkNorm::RotatedUnweighted { .. }) => continue,
            Some(QkNorm::PerHead | QkNorm::OfSharedKeys) => (vec![head_dim], TensorCut::Replicated),
            Some(QkNorm::OwnWeights) => {
                (vec![heads, head_dim], TensorCut::whole_column(dimension, heads))
            }
            Some(QkNorm::AllHeads) => {
                let len = heads * head_dim;
                (vec![len], TensorCut::whole_column(dimension, len))
            }
        };
        let norm = vector(&format!("{module}.weight"), TensorRole::Norm, head_dim, cut);
        // Some checkpoints have a tensor for each head.
        let has_own = spec.qk_norm == Some(QkNorm::OwnWeights);
        let per_expert = has_own.then(|| [format!("{module}."), ".weight".to_owned()]);
        tensors.push(TensorSpec { shape, per_expert, ..norm });
    }
    tensors
}

/// Returns the tensors of what chooses blocks for attention at `block`.
fn index_tensors(hidden: usize, block: &str, choice: &BlockChoice) -> Vec<TensorSpec> {
    let &BlockChoice { heads, head_dim, .. } = choice;
    let linear =
        |output| Linear { role: TensorRole::Mixer, output, input: hidden, has_bias: false };
    let (queries, module) = (linear(heads * head_dim), format!("{block}.index_q_proj"));
    let mut tensors = match heads {
        1 => queries.whole(&module),
        _ => queries.column(&module, Dimension::KvHeads),
    };
    tensors.extend(linear(head_dim).whole(&format!("{block}.index_k_proj")));
    tensors.extend(["q", "k"].map(|name| {
        let name = format!("{block}.index_{name}_norm.weight");
        vector(&name, TensorRole::Norm, head_dim, TensorCut::Replicated)
    }));
    tensors
}

/// Returns the tensors of what chooses pools for attention at `block`.
fn pool_tensors(hidden: usize, block: &str, choice: &PoolChoice) -> Vec<TensorSpec> {
    let &PoolChoice { heads, head_dim, .. } = choice;
    let output = (heads + 1) * head_dim;
    let both = Linear { role: TensorRole::Mixer, output, input: hidden, has_bias: false };
    let mut tensors = both.whole(&format!("{block}.indexer.index_qk_proj"));
    tensors.extend(["q", "k"].map(|name| {
        let name = format!("{block}.indexer.{name}_layernorm.weight");
        vector(&name, TensorRole::Norm, head_dim, TensorCut::Replicated)
    }));
    tensors
}

/// Returns a dense feed-forward block at `module`, with the names of Llama's checkpoints.
pub(super) fn mlp(module: &str, hidden: usize, mut spec: MlpSpec) -> Block {
    spec.modules = MlpModules::gated_at(module);
    dense(hidden, spec)
}

/// Returns a dense feed-forward block.
pub(super) fn dense(hidden: usize, spec: MlpSpec) -> Block {
    let mut tensors = projections_of(hidden, &spec, Dimension::Inner);
    if spec.activation == Activation::Xielu {
        tensors.extend(["alpha_p", "alpha_n", "beta", "eps"].map(|name| {
            let name = format!("{}.{name}", spec.modules.activation);
            let number = vector(&name, TensorRole::Mlp, 1, TensorCut::Replicated);
            TensorSpec { shape: Vec::new(), ..number }
        }));
    }
    Block { feed_forward: FeedForward::Mlp(spec), tensors }
}

/// Returns the tensors of a dense block's projections.
fn projections_of(hidden: usize, spec: &MlpSpec, dimension: Dimension) -> Vec<TensorSpec> {
    let (role, has_bias) = (TensorRole::Mlp, spec.has_bias);
    let inward = |output: usize| Linear { role, output, input: hidden, has_bias };
    let mut tensors = match &spec.modules.inward {
        InwardModules::Apart(modules) => {
            modules.iter().flat_map(|it| inward(spec.inner).column(it, dimension)).collect()
        }
        InwardModules::Stacked(module) => {
            let segments = [(dimension, spec.inner); 2];
            inward(2 * spec.inner).segments(module, &segments)
        }
        InwardModules::Either { apart, stacked } => {
            let name = format!("{stacked}.weight");
            let segments = [(dimension, spec.inner); 2];
            let both = inward(2 * spec.inner).segments(stacked, &segments).into_iter();
            let both = both.map(|it| TensorSpec { presence: Presence::With(name.clone()), ..it });
            let each = apart.iter().flat_map(|it| inward(spec.inner).column(it, dimension));
            let each =
                each.map(|it| TensorSpec { presence: Presence::Without(name.clone()), ..it });
            both.chain(each).collect()
        }
        InwardModules::Ungated(module) => inward(spec.inner).column(module, dimension),
    };
    let outward = Linear { role, output: hidden, input: spec.inner, has_bias };
    tensors.extend(outward.row(&spec.modules.down, dimension));
    tensors
}

/// Names of the tensors of a block of routed experts.
pub(super) struct ExpertNames {
    /// Name of the router, relative to the block.
    pub(super) router: &'static str,
    /// Name of the module with the stacked matrices of all experts, relative to the block.
    pub(super) stacked: &'static str,
    /// Names of these matrices (gate, up and down), relative to that module.
    pub(super) stacked_projections: [&'static str; 3],
    /// Name before the number of an expert, relative to the block, in checkpoints with a tensor per
    /// expert.
    pub(super) each: &'static str,
    /// Names of an expert's projections in such checkpoints: gate, up and down.
    pub(super) projections: [&'static str; 3],
    /// Names under which original checkpoints may have gate and up in one tensor.
    pub(super) fused: &'static [FusedNames],
    /// Name of the bias of the scores by which experts are chosen, relative to the block; `None` if
    /// there is none.
    pub(super) score_bias: Option<&'static str>,
    /// Name of the shared expert, which every token passes, relative to the block.
    pub(super) shared: &'static str,
    /// Projections of the shared expert.
    pub(super) shared_projections: SharedProjections,
    /// Name of the gate of the shared expert, relative to the block; `None` if it has none.
    pub(super) shared_gate: Option<&'static str>,
    /// Names of the projections to and from what routed experts read and write, if it is not the stream,
    /// relative to the block.
    pub(super) latent: [&'static str; 2],
    /// Name of the norm before the second of them, relative to the block; `None` if there is none.
    pub(super) latent_norm: Option<&'static str>,
}

/// Names of the projections of a shared expert, relative to its module.
#[derive(Clone, Copy)]
pub(super) enum SharedProjections {
    /// Gate, up and down, with the names of Llama's checkpoints.
    Apart,
    /// Gate and up in one tensor, then down.
    Stacked([&'static str; 2]),
    /// As `Apart`, or with gate and up in a tensor of this name.
    Either(&'static str),
    /// Up and down, with the names of Llama's checkpoints, around the square of the positive part.
    Ungated,
}

impl SharedProjections {
    /// Returns the expert at `module`.
    fn at(self, module: &str, inner: usize) -> MlpSpec {
        let mut spec = MlpSpec::plain(inner);
        spec.modules = match self {
            SharedProjections::Apart => MlpModules::gated_at(module),
            SharedProjections::Either(both) => MlpModules::either_at(module, both),
            SharedProjections::Ungated => {
                spec.activation = Activation::ReluSquared;
                MlpModules::ungated_at(module)
            }
            SharedProjections::Stacked([inward, down]) => MlpModules {
                inward: InwardModules::Stacked(format!("{module}.{inward}")),
                down: format!("{module}.{down}"),
                activation: String::new(),
            },
        };
        spec
    }
}

impl ExpertNames {
    /// The names of Qwen's checkpoints.
    pub(super) const QWEN: ExpertNames = ExpertNames {
        router: "gate",
        stacked: "switch_mlp",
        stacked_projections: ["gate_proj", "up_proj", "down_proj"],
        each: "experts",
        projections: ["gate_proj", "up_proj", "down_proj"],
        fused: &[],
        score_bias: None,
        shared: "shared_expert",
        shared_projections: SharedProjections::Apart,
        shared_gate: None,
        latent: ["fc1_latent_proj", "fc2_latent_proj"],
        latent_norm: None,
    };
}

/// The tensors of all experts in an original checkpoint, below the block.
pub(super) struct FusedNames {
    /// Gate and up.
    pub(super) gate_up: &'static str,
    pub(super) down: &'static str,
    pub(super) form: FusedForm,
    pub(super) order: FusedOrder,
}

/// The order of the rows of gate and up in one tensor.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum FusedOrder {
    /// All rows of the gate, then all of up.
    Halves,
    /// A row of the gate, then one of up, and so on.
    InTurn,
}

impl FusedNames {
    /// The names of Hugging Face's checkpoints.
    const fn hugging_face(form: FusedForm, order: FusedOrder) -> FusedNames {
        FusedNames { gate_up: "experts.gate_up_proj", down: "experts.down_proj", form, order }
    }

    /// As linear layers hold them, gate first.
    pub(super) const ROWS: FusedNames =
        FusedNames::hugging_face(FusedForm::Rows, FusedOrder::Halves);

    /// Transposed, gate first.
    pub(super) const COLUMNS: FusedNames =
        FusedNames::hugging_face(FusedForm::Columns, FusedOrder::Halves);

    /// Transposed, gate and up in turn.
    pub(super) const COLUMNS_IN_TURN: FusedNames =
        FusedNames::hugging_face(FusedForm::Columns, FusedOrder::InTurn);

    /// In MXFP4, gate and up in turn.
    pub(super) const BLOCKS: FusedNames =
        FusedNames::hugging_face(FusedForm::Blocks, FusedOrder::InTurn);

    /// Returns where a projection of `rows` rows is, by its place in [`ExpertModules::experts`].
    fn source(&self, module: &str, idx: usize, rows: usize) -> FusedSource {
        let &FusedNames { gate_up, down, form, order } = self;
        let name = if idx == 2 { down } else { gate_up };
        let (first_row, row_step, num_projections) = match (idx, order) {
            (2, _) => (0, 1, 1),
            (_, FusedOrder::Halves) => (idx * rows, 1, 2),
            (_, FusedOrder::InTurn) => (idx, 2, 2),
        };
        let path = format!("{module}.{name}");
        FusedSource { path, form, first_row, row_step, num_projections }
    }
}

/// The number of experts, and how many of them a token passes.
#[derive(Clone, Copy)]
pub(super) struct ExpertCounts {
    pub(super) num_experts: usize,
    pub(super) experts_per_token: usize,
}

impl ExpertCounts {
    /// Checks the values of the configuration: `field` is the name of `num_experts`.
    ///
    /// # Errors
    /// Fails if a number is out of bounds.
    pub(super) fn new(
        field: &'static str,
        num_experts: u32,
        per_token: u32,
    ) -> Result<ExpertCounts, SpecError> {
        let num_experts = count(field, num_experts)?;
        let experts_per_token = experts_per_token(per_token, num_experts)?;
        Ok(ExpertCounts { num_experts, experts_per_token })
    }

    /// As [`ExpertCounts::new`], for the field `num_local_experts`.
    pub(super) fn local(num_experts: u32, per_token: u32) -> Result<ExpertCounts, SpecError> {
        ExpertCounts::new("num_local_experts", num_experts, per_token)
    }
}

/// Returns the groups of which a router considers some, `count` of them in the field `field`;
/// `None` if it considers all. There is one group if the configuration does not state a number.
///
/// # Errors
/// Fails if a number is out of bounds, or groups do not divide the experts.
pub(super) fn router_groups(
    field: &'static str,
    groups: Option<u32>,
    chosen: Option<u32>,
    num_experts: usize,
) -> Result<Option<RouterGroups>, SpecError> {
    let groups = count(field, groups.unwrap_or(1))?;
    let chosen = count("topk_group", chosen.unwrap_or(1))?;
    if !num_experts.is_multiple_of(groups) {
        return Err(bad_value(field, groups, format!("a divisor of {num_experts} experts")));
    }
    let stated = RouterGroups { count: groups, chosen, best: 2, excluded: 0.0 };
    Ok((chosen < groups).then_some(stated))
}

/// The sizes and the router of a block of experts.
#[derive(Clone, Copy)]
pub(super) struct ExpertSizes {
    pub(super) num_experts: usize,
    /// Number of experts after these that return what they read.
    pub(super) num_identity: usize,
    pub(super) experts_per_token: usize,
    pub(super) inner: usize,
    pub(super) shared_inner: Option<usize>,
    /// Activation of the expert that every token passes, if it is not the one that its names imply.
    pub(super) shared_activation: Option<Activation>,
    pub(super) activation: Activation,
    pub(super) has_bias: bool,
    /// Whether the products of the expert that every token passes have biases.
    pub(super) has_shared_bias: bool,
    /// Width of what routed experts read and write, if it is not the stream.
    pub(super) latent: Option<usize>,
    pub(super) router: RouterSpec,
}

impl ExpertSizes {
    /// Creates experts without biases, of which none is passed by every token.
    pub(super) fn plain(counts: ExpertCounts, inner: usize, router: RouterSpec) -> ExpertSizes {
        let ExpertCounts { num_experts, experts_per_token } = counts;
        let activation = Activation::Silu;
        ExpertSizes {
            num_experts,
            num_identity: 0,
            experts_per_token,
            inner,
            shared_inner: None,
            shared_activation: None,
            activation,
            has_bias: false,
            has_shared_bias: false,
            latent: None,
            router,
        }
    }
}

/// Returns the inner dimension of all experts that every token passes; `None` if there are none.
///
/// # Errors
/// Fails if their number is out of bounds.
pub(super) fn shared_inner(inner: usize, number: u32) -> Result<Option<usize>, SpecError> {
    match number {
        0 => Ok(None),
        _ => Ok(Some(inner * count("num_shared_experts", number)?)),
    }
}

/// Returns a block of routed experts at `module`.
pub(super) fn experts(
    module: &str,
    hidden: usize,
    names: &ExpertNames,
    sizes: ExpertSizes,
) -> Block {
    let ExpertSizes { num_experts, num_identity, inner, shared_inner, router, .. } = sizes;
    let modules = expert_modules(module, names, inner);
    let (role, num_scores) = (TensorRole::Router, num_experts + num_identity);
    let mut tensors =
        vec![matrix(&modules.router, role, vec![num_scores, hidden], TensorCut::Replicated)];
    if router.has_bias {
        let name = format!("{}.bias", modules.router);
        tensors.push(vector(&name, role, num_scores, TensorCut::Replicated));
    }
    if let Some(name) = &modules.selection_bias {
        tensors.push(vector(name, role, num_scores, TensorCut::Replicated));
    }
    let at = |name: &str| format!("{module}.{name}");
    let latent = sizes.latent.map(|width| ExpertLatent {
        width,
        down: at(names.latent[0]),
        norm: names.latent_norm.map(at),
        up: at(names.latent[1]),
    });
    if let Some(ExpertLatent { width, down, norm, up }) = &latent {
        tensors.extend(norm.iter().map(|module| {
            let name = format!("{module}.weight");
            vector(&name, TensorRole::Norm, *width, TensorCut::Replicated)
        }));
        let role = TensorRole::Mlp;
        let linear = |output, input| Linear { role, output, input, has_bias: false };
        tensors.extend(linear(*width, hidden).whole(down));
        tensors.extend(linear(hidden, *width).whole(up));
    }
    tensors.extend(projections(&modules.experts, sizes.latent.unwrap_or(hidden), sizes));
    let shared = shared_inner.map(|inner| {
        let spec = names.shared_projections.at(&format!("{module}.{}", names.shared), inner);
        let activation = sizes.shared_activation.unwrap_or(spec.activation);
        MlpSpec { has_bias: sizes.has_shared_bias, activation, ..spec }
    });
    if let Some(shared) = &shared {
        tensors.extend(projections_of(hidden, shared, Dimension::SharedInner));
    }
    if let Some(gate) = &modules.shared_gate {
        tensors.push(matrix(gate, role, vec![1, hidden], TensorCut::Replicated));
    }
    let ExpertSizes { experts_per_token, activation, has_bias, .. } = sizes;
    let spec = ExpertsSpec {
        num_experts,
        num_identity,
        experts_per_token,
        inner,
        shared,
        activation,
        has_bias,
        latent,
        router,
        modules,
        beside: None,
    };
    Block { feed_forward: FeedForward::Experts(Box::new(spec)), tensors }
}

fn expert_modules(module: &str, names: &ExpertNames, inner: usize) -> ExpertModules {
    let at = |name: &str| format!("{module}.{name}");
    let fused = |idx: usize| names.fused.iter().map(|it| it.source(module, idx, inner)).collect();
    ExpertModules {
        router: at(names.router),
        selection_bias: names.score_bias.map(at),
        router_norm: None,
        expert_scales: None,
        token_experts: None,
        experts: [0, 1, 2].map(|idx| StackedModule {
            stacked: at(&format!("{}.{}", names.stacked, names.stacked_projections[idx])),
            each: [at(&format!("{}.", names.each)), format!(".{}", names.projections[idx])],
            fused: fused(idx),
        }),
        shared_gate: names.shared_gate.map(at),
    }
}

/// Returns the tensors of the experts' projections: gate, up and down.
fn projections(modules: &[StackedModule; 3], hidden: usize, sizes: ExpertSizes) -> Vec<TensorSpec> {
    let ExpertSizes { num_experts, inner, has_bias, activation, .. } = sizes;
    let column = TensorCut::whole_column(Dimension::ExpertInner, inner);
    let row = TensorCut::Row(Dimension::ExpertInner);
    // The bias of the output is added to the sum over the ranks.
    let of_projection = [
        ([inner, hidden], &column, &column),
        ([inner, hidden], &column, &column),
        ([hidden, inner], &row, &TensorCut::Replicated),
    ];
    let mut tensors = Vec::new();
    let num_missing = usize::from(!activation.has_gate());
    let stored = modules.iter().zip(of_projection).skip(num_missing);
    for (module, ([output, input], cut, bias_cut)) in stored {
        let StackedModule { stacked, each: [before, after], fused } = module;
        let role = TensorRole::Experts;
        let each = |ending: &str| Some([before.clone(), format!("{after}.{ending}")]);
        let weight = matrix(stacked, role, vec![num_experts, output, input], cut.clone());
        tensors.push(TensorSpec { per_expert: each("weight"), fused: fused.clone(), ..weight });
        if has_bias {
            let bias = vector(&format!("{stacked}.bias"), role, output, bias_cut.clone());
            tensors.push(TensorSpec {
                shape: vec![num_experts, output],
                per_expert: each("bias"),
                fused: fused.clone(),
                ..bias
            });
        }
    }
    tensors
}
