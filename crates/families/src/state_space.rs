//! The tensors of Mamba-2's state spaces.

use serde::Deserialize;

use super::blocks::{Linear, MixerBlock, attention_tensors, vector};
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension, float_pair, setting};
use jackalope_spec::{
    AttentionSpec, CacheKind, CutSegment, Dimension, GroupNormSpec, HeadRows, Mixer,
    ParallelMixers, Presence, StateSpaceSizes, StateSpaceSpec, TensorCut, TensorRole, TensorSpec,
};

/// The fields of `config.json` about state spaces, with the names of Granite.
#[derive(Debug, Deserialize)]
pub(super) struct StateSpaceConfig {
    mamba_n_heads: u32,
    mamba_d_head: u32,
    mamba_n_groups: u32,
    mamba_d_state: u32,
    mamba_d_conv: u32,
    #[serde(default)]
    pub(super) mamba_conv_bias: bool,
    #[serde(default)]
    pub(super) mamba_proj_bias: bool,
    mamba_hidden_act: Option<String>,
    #[serde(default, deserialize_with = "float_pair")]
    time_step_limit: Option<[f64; 2]>,
}

/// What the state spaces of a model have in common.
#[derive(Clone, Debug)]
pub(super) struct StateSpaceLayer {
    pub(super) sizes: StateSpaceSizes,
    pub(super) has_projection_bias: bool,
    pub(super) has_conv_bias: bool,
    pub(super) has_output_bias: bool,
    pub(super) step_limits: [f32; 2],
    /// Norm of the heads' results, below the module of each layer.
    pub(super) norm: Option<GroupNormSpec>,
}

impl StateSpaceConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    /// Fails if a size is out of bounds, or groups do not divide heads.
    fn sizes(&self) -> Result<StateSpaceSizes, SpecError> {
        let heads = dimension("mamba_n_heads", self.mamba_n_heads)?;
        let groups = dimension("mamba_n_groups", self.mamba_n_groups)?;
        if !heads.is_multiple_of(groups) {
            let expected = format!("a divisor of the number of heads, {heads}");
            return Err(bad_value("mamba_n_groups", groups, expected));
        }
        Ok(StateSpaceSizes {
            heads,
            groups,
            head_dim: dimension("mamba_d_head", self.mamba_d_head)?,
            state_dim: dimension("mamba_d_state", self.mamba_d_state)?,
            conv_width: dimension("mamba_d_conv", self.mamba_d_conv)?,
        })
    }

    /// Returns the layers, whose norm takes all heads together; `default` are the limits of time steps
    /// that the configuration does not state.
    ///
    /// # Errors
    /// Fails if a value is out of bounds or the activation is not supported.
    pub(super) fn layer(&self, eps: f32, default: [f64; 2]) -> Result<StateSpaceLayer, SpecError> {
        setting("activation", self.mamba_hidden_act.as_deref(), &["silu", "swish"])?;
        let [min, max] = self.time_step_limit.unwrap_or(default);
        if !(0.0 <= min && min <= max) {
            let found = format!("[{min}, {max}]");
            return Err(bad_value("time_step_limit", found, "two numbers in ascending order"));
        }
        Ok(StateSpaceLayer {
            sizes: self.sizes()?,
            has_projection_bias: self.mamba_proj_bias,
            has_conv_bias: self.mamba_conv_bias,
            has_output_bias: self.mamba_proj_bias,
            step_limits: [min as f32, max as f32],
            norm: Some(GroupNormSpec {
                module: "norm".to_owned(),
                groups: 1,
                eps,
                precedes_gate: false,
            }),
        })
    }
}

impl StateSpaceLayer {
    /// Returns the state space at `module`.
    pub(super) fn at(&self, module: &str, hidden: usize) -> MixerBlock {
        let spec = self.spec(module);
        let tensors = tensors(&spec, hidden, [Dimension::Heads, Dimension::KvHeads]);
        MixerBlock { cache: cache(self.sizes), mixer: Mixer::StateSpace(Box::new(spec)), tensors }
    }

    /// Returns the state space at `module` beside attention.
    pub(super) fn beside(
        &self,
        module: &str,
        hidden: usize,
        attention: AttentionSpec,
    ) -> MixerBlock {
        let mut tensors = attention_tensors(hidden, &attention);
        let space = self.spec(module);
        let dimensions = [Dimension::StateHeads, Dimension::StateGroups];
        tensors.extend(self::tensors(&space, hidden, dimensions));
        let CacheKind::State { elements_per_head, elements_per_kv_head } = cache(self.sizes) else {
            panic!("a state space keeps a state")
        };
        let cache = CacheKind::PositionsAndState {
            elements_per_kv_head: 2 * attention.head_dim,
            elements_per_state_head: elements_per_head,
            elements_per_state_group: elements_per_kv_head,
        };
        let mixer = Mixer::Parallel(Box::new(ParallelMixers { attention, space }));
        MixerBlock { mixer, cache, tensors }
    }

    fn spec(&self, module: &str) -> StateSpaceSpec {
        let StateSpaceSizes { heads, groups, head_dim, state_dim, .. } = self.sizes;
        let at = |name: &str| format!("{module}.{name}");
        let (values, keys) = (heads * head_dim, groups * state_dim);
        let rows = |name: &str, num_rows, start, num_heads, width| HeadRows {
            num_rows,
            start,
            ..HeadRows::whole(at(name), num_heads, width)
        };
        // Gates, values, keys, queries, time steps.
        let projected = |start, num_heads, width| {
            rows("in_proj", 2 * values + 2 * keys + heads, start, num_heads, width)
        };
        let convolved =
            |start, num_heads, width| rows("conv1d", values + 2 * keys, start, num_heads, width);
        StateSpaceSpec {
            sizes: self.sizes,
            gates: projected(0, heads, head_dim),
            values: projected(values, heads, head_dim),
            keys: projected(2 * values, groups, state_dim),
            queries: projected(2 * values + keys, groups, state_dim),
            steps: projected(2 * values + 2 * keys, heads, 1),
            has_projection_bias: self.has_projection_bias,
            convolutions: [
                convolved(values + keys, groups, state_dim),
                convolved(values, groups, state_dim),
                convolved(0, heads, head_dim),
            ],
            has_conv_bias: self.has_conv_bias,
            a_log: at("A_log"),
            dt_bias: at("dt_bias"),
            skips: at("D"),
            step_limits: self.step_limits,
            norm: self
                .norm
                .as_ref()
                .map(|norm| GroupNormSpec { module: at(&norm.module), ..norm.clone() }),
            output: at("out_proj"),
            has_output_bias: self.has_output_bias,
        }
    }
}

/// Returns the tensors of a state space whose heads and groups are divided by these dimensions.
fn tensors(spec: &StateSpaceSpec, hidden: usize, dimensions: [Dimension; 2]) -> Vec<TensorSpec> {
    let StateSpaceSizes { heads, groups, head_dim, state_dim, conv_width } = spec.sizes;
    let [of_heads, of_groups] = dimensions;
    let (values, keys) = (heads * head_dim, groups * state_dim);
    let role = TensorRole::Mixer;
    let output = spec.gates.num_rows;
    let inward = Linear { role, output, input: hidden, has_bias: spec.has_projection_bias };
    let segments = [(of_heads, 2 * values), (of_groups, 2 * keys), (of_heads, heads)];
    let mut tensors = inward.segments(&spec.gates.module, &segments);
    let channels = TensorCut::Column(vec![
        CutSegment { dimension: of_heads, len: values },
        CutSegment { dimension: of_groups, len: 2 * keys },
    ]);
    let [convolution, ..] = &spec.convolutions;
    tensors.push(TensorSpec {
        name: format!("{}.weight", convolution.module),
        role,
        shape: vec![convolution.num_rows, conv_width, 1],
        cut: channels.clone(),
        is_quantizable: false,
        per_expert: None,
        fused: Vec::new(),
        presence: Presence::Always,
    });
    if spec.has_conv_bias {
        let name = format!("{}.bias", convolution.module);
        tensors.push(vector(&name, role, convolution.num_rows, channels));
    }
    let own = |len: usize| TensorCut::whole_column(of_heads, len);
    for name in [&spec.a_log, &spec.dt_bias, &spec.skips] {
        tensors.push(vector(name, role, heads, own(heads)));
    }
    if let Some(norm) = &spec.norm {
        let name = format!("{}.weight", norm.module);
        tensors.push(vector(&name, TensorRole::Norm, values, own(values)));
    }
    let has_bias = spec.has_output_bias;
    let outward = Linear { role, output: hidden, input: values, has_bias };
    tensors.extend(outward.row(&spec.output, of_heads));
    tensors
}

/// Returns what a state space keeps: states, and the last inputs of the convolutions.
fn cache(sizes: StateSpaceSizes) -> CacheKind {
    let StateSpaceSizes { head_dim, state_dim, conv_width, .. } = sizes;
    let num_inputs = conv_width - 1;
    CacheKind::State {
        elements_per_head: (state_dim + num_inputs) * head_dim,
        elements_per_kv_head: 2 * num_inputs * state_dim,
    }
}
