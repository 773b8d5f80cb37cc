//! The tensors of gated delta nets.

use serde::Deserialize;

use super::blocks::{Linear, MixerBlock, matrix, vector};
use super::decoder::norm;
use jackalope_config::error::SpecError;
use jackalope_config::fields::{bad_value, dimension};
use jackalope_spec::{
    CacheKind, CutSegment, Dimension, GatedDeltaSizes, GatedDeltaSpec, HeadRows, KimiDelta,
    LayerSpec, Mixer, NumberEdit, OriginalNumbers, OriginalSign, Presence, TensorCut, TensorRole,
    TensorSpec,
};

/// The fields of `config.json` about gated delta nets.
#[derive(Debug, Deserialize)]
pub(super) struct GatedDeltaConfig {
    linear_num_key_heads: u32,
    linear_num_value_heads: u32,
    linear_key_head_dim: u32,
    linear_value_head_dim: u32,
    linear_conv_kernel_dim: u32,
}

impl GatedDeltaConfig {
    /// Checks the sizes.
    ///
    /// # Errors
    /// Fails if a size is out of bounds, or key heads do not divide value heads.
    pub(super) fn sizes(&self) -> Result<GatedDeltaSizes, SpecError> {
        let key_heads = dimension("linear_num_key_heads", self.linear_num_key_heads)?;
        let value_heads = dimension("linear_num_value_heads", self.linear_num_value_heads)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of linear_num_key_heads, {key_heads}");
            return Err(bad_value("linear_num_value_heads", value_heads, expected));
        }
        Ok(GatedDeltaSizes {
            key_heads,
            value_heads,
            key_dim: dimension("linear_key_head_dim", self.linear_key_head_dim)?,
            value_dim: dimension("linear_value_head_dim", self.linear_value_head_dim)?,
            conv_width: dimension("linear_conv_kernel_dim", self.linear_conv_kernel_dim)?,
        })
    }
}

/// Returns the norms whose weights Qwen's original checkpoints store minus one: all but those of the
/// nets' results. `None` if no layer has a net, whose kernels show which checkpoints those are.
pub(super) fn shifted_norms(layers: &[LayerSpec]) -> Option<OriginalNumbers> {
    let net = |layer: &LayerSpec| match &layer.mixer {
        Mixer::GatedDelta(net) => Some(net.convolutions[0].module.clone()),
        _ => None,
    };
    let endings = [
        ".input_layernorm.weight",
        ".post_attention_layernorm.weight",
        "model.norm.weight",
        ".q_norm.weight",
        ".k_norm.weight",
    ];
    Some(OriginalNumbers {
        sign: OriginalSign::Kernel(format!("{}.weight", layers.iter().find_map(net)?)),
        edits: endings.map(|ending| (ending, NumberEdit::AddOne)).to_vec(),
    })
}

/// Returns the block of Qwen3-Next at `module`: two fused projections, whose rows are ordered by
/// key head.
pub(super) fn fused(module: &str, hidden: usize, sizes: GatedDeltaSizes) -> MixerBlock {
    let GatedDeltaSizes { key_heads, value_heads, key_dim, value_dim, .. } = sizes;
    let group = value_heads / key_heads;
    let [wide, narrow] = ["in_proj_qkvz", "in_proj_ba"].map(|name| format!("{module}.{name}"));
    let (wide_stride, narrow_stride) = (2 * (key_dim + group * value_dim), 2 * group);
    let of_keys = |start| HeadRows {
        module: wide.clone(),
        num_rows: key_heads * wide_stride,
        start,
        rows_per_head: key_dim,
        heads_per_group: 1,
        group_stride: wide_stride,
    };
    let of_values =
        |start| HeadRows { rows_per_head: value_dim, heads_per_group: group, ..of_keys(start) };
    let scalars = |start| HeadRows {
        module: narrow.clone(),
        num_rows: key_heads * narrow_stride,
        start,
        rows_per_head: 1,
        heads_per_group: group,
        group_stride: narrow_stride,
    };
    let spec = GatedDeltaSpec {
        queries: of_keys(0),
        keys: of_keys(key_dim),
        values: of_values(2 * key_dim),
        gates: of_values(2 * key_dim + group * value_dim),
        rates: scalars(0),
        decays: scalars(group),
        ..unfused(module, sizes)
    };
    let projections = vec![
        projection(
            &wide,
            hidden,
            &[
                (Dimension::KvHeads, 2 * key_heads * key_dim),
                (Dimension::Heads, 2 * value_heads * value_dim),
            ],
        ),
        projection(&narrow, hidden, &[(Dimension::Heads, 2 * value_heads)]),
    ];
    block(hidden, spec, projections)
}

/// Returns the block of Qwen3.5 at `module`: a projection of queries, keys and values, and one each
/// of gates, rates and decays.
pub(super) fn split(module: &str, hidden: usize, sizes: GatedDeltaSizes) -> MixerBlock {
    let spec = unfused(module, sizes);
    let (keys, values) = (sizes.key_heads * sizes.key_dim, sizes.value_heads * sizes.value_dim);
    let projections = vec![
        projection(
            &spec.queries.module,
            hidden,
            &[(Dimension::KvHeads, 2 * keys), (Dimension::Heads, values)],
        ),
        projection(&spec.gates.module, hidden, &[(Dimension::Heads, values)]),
        projection(&spec.rates.module, hidden, &[(Dimension::Heads, sizes.value_heads)]),
        projection(&spec.decays.module, hidden, &[(Dimension::Heads, sizes.value_heads)]),
    ];
    block(hidden, spec, projections)
}

/// Returns the block of OLMo Hybrid at `module`: each projection and each convolution in a tensor
/// of its own.
pub(super) fn apart(
    module: &str,
    hidden: usize,
    sizes: GatedDeltaSizes,
    settings: GatedDeltaSettings,
) -> MixerBlock {
    let GatedDeltaSizes { key_heads, value_heads, key_dim, value_dim, .. } = sizes;
    let at = |name: &str| format!("{module}.{name}");
    let of_keys = |name: &str| HeadRows::whole(at(name), key_heads, key_dim);
    let of_values = |name: &str| HeadRows::whole(at(name), value_heads, value_dim);
    let scalars = |name: &str| HeadRows::whole(at(name), value_heads, 1);
    let spec = GatedDeltaSpec {
        queries: of_keys("q_proj"),
        keys: of_keys("k_proj"),
        values: of_values("v_proj"),
        gates: of_values("g_proj"),
        rates: scalars("b_proj"),
        decays: scalars("a_proj"),
        convolutions: [of_keys("q_conv1d"), of_keys("k_conv1d"), of_values("v_conv1d")],
        norm: at("o_norm"),
        norm_eps: Some(settings.norm_eps),
        output: at("o_proj"),
        rate_max: settings.rate_max,
        ..unfused(module, sizes)
    };
    let of_heads = [&spec.values, &spec.gates, &spec.rates, &spec.decays];
    let of_heads = of_heads.map(|rows| (Dimension::Heads, rows));
    let of_keys = [&spec.queries, &spec.keys].map(|rows| (Dimension::KvHeads, rows));
    let projections = of_keys.into_iter().chain(of_heads);
    let projections = projections
        .map(|(dimension, rows)| projection(&rows.module, hidden, &[(dimension, rows.num_rows)]));
    let projections = projections.collect();
    block(hidden, spec, projections)
}

/// Settings of a gated delta net that the configuration states separately.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatedDeltaSettings {
    /// See [`GatedDeltaSpec::norm_eps`].
    pub(super) norm_eps: f32,
    /// See [`GatedDeltaSpec::rate_max`].
    pub(super) rate_max: u8,
}

/// Returns the description of a net with the names of Qwen3.5.
fn unfused(module: &str, sizes: GatedDeltaSizes) -> GatedDeltaSpec {
    let GatedDeltaSizes { key_heads, value_heads, key_dim, value_dim, .. } = sizes;
    let at = |name: &str| format!("{module}.{name}");
    let (keys, values) = (key_heads * key_dim, value_heads * value_dim);
    // Queries, then keys, then values, each with all of its heads.
    let mixed = |name: &str, start: usize, num_heads: usize, width: usize| HeadRows {
        num_rows: 2 * keys + values,
        start,
        ..HeadRows::whole(at(name), num_heads, width)
    };
    let three = |name: &str| {
        [
            mixed(name, 0, key_heads, key_dim),
            mixed(name, keys, key_heads, key_dim),
            mixed(name, 2 * keys, value_heads, value_dim),
        ]
    };
    let [queries, keys, values] = three("in_proj_qkv");
    GatedDeltaSpec {
        sizes,
        queries,
        keys,
        values,
        gates: HeadRows::whole(at("in_proj_z"), value_heads, value_dim),
        rates: HeadRows::whole(at("in_proj_b"), value_heads, 1),
        decays: HeadRows::whole(at("in_proj_a"), value_heads, 1),
        convolutions: three("conv1d"),
        a_log: at("A_log"),
        dt_bias: at("dt_bias"),
        norm: at("norm"),
        norm_eps: None,
        output: at("out_proj"),
        rate_max: 1,
        has_logistic_gates: false,
        kimi: None,
        joined: None,
    }
}

/// Returns a projection whose rows belong to these dimensions.
fn projection(module: &str, hidden: usize, rows: &[(Dimension, usize)]) -> TensorSpec {
    let segments = rows.iter().map(|&(dimension, len)| CutSegment { dimension, len });
    let cut = TensorCut::Column(segments.collect());
    let num_rows = rows.iter().map(|(_, len)| len).sum();
    matrix(module, TensorRole::Mixer, vec![num_rows, hidden], cut)
}

/// Adds the tensors that all nets have to the projections.
fn block(hidden: usize, spec: GatedDeltaSpec, projections: Vec<TensorSpec>) -> MixerBlock {
    let sizes = spec.sizes;
    let mut tensors = projections;
    tensors.extend(kernels(&spec));
    let of_heads = |name: &str, len: usize| {
        let cut = TensorCut::whole_column(Dimension::Heads, len);
        vector(name, TensorRole::Mixer, len, cut)
    };
    tensors.push(of_heads(&spec.a_log, sizes.value_heads));
    tensors.push(of_heads(&spec.dt_bias, sizes.value_heads * spec.decays_per_head()));
    tensors.push(norm(&spec.norm, sizes.value_dim));
    let input = sizes.value_heads * sizes.value_dim;
    let output = Linear { role: TensorRole::Mixer, output: hidden, input, has_bias: false };
    tensors.extend(output.row(&spec.output, Dimension::Heads));
    MixerBlock { mixer: Mixer::GatedDelta(Box::new(spec)), cache: cache(sizes), tensors }
}

/// How checkpoints store Kimi delta attention.
#[derive(Clone, Copy, Debug)]
pub(super) struct KimiForm {
    /// Projections to queries, keys and values; all of them have one name if they are in one tensor.
    pub(super) projections: [&'static str; 3],
    /// Their convolutions, as `projections`.
    pub(super) convolutions: [&'static str; 3],
    /// Projection to decays.
    pub(super) decays: &'static str,
    /// Projection to the vectors of low rank that it reads, if it does not read the stream.
    pub(super) decays_down: Option<&'static str>,
    /// Projection to gates.
    pub(super) gates: &'static str,
    /// As `decays_down`, for the gates.
    pub(super) gates_down: Option<&'static str>,
    /// See [`KimiDelta::log_decay_min`].
    pub(super) log_decay_min: Option<f32>,
}

impl KimiForm {
    /// As Kimi Linear.
    pub(super) const LINEAR: KimiForm = KimiForm {
        projections: ["q_proj", "k_proj", "v_proj"],
        convolutions: ["q_conv.conv", "k_conv.conv", "v_conv.conv"],
        decays: "f_b_proj",
        decays_down: Some("f_a_proj"),
        gates: "g_b_proj",
        gates_down: Some("g_a_proj"),
        log_decay_min: None,
    };
}

/// Returns the minimum of the decays' logarithms after checking it.
///
/// # Errors
/// Fails if it is positive.
pub(super) fn log_decay_min(field: &'static str, found: f32) -> Result<f32, SpecError> {
    if found.is_finite() && found <= 0.0 {
        return Ok(found);
    }
    Err(bad_value(field, found, "a number that is not positive"))
}

/// Returns Kimi delta attention at `module`.
pub(super) fn kimi(
    module: &str,
    hidden: usize,
    sizes: GatedDeltaSizes,
    form: KimiForm,
) -> MixerBlock {
    let GatedDeltaSizes { value_heads: heads, key_dim, .. } = sizes;
    let (at, width) = (|name: &str| format!("{module}.{name}"), heads * key_dim);
    let rows = |name: &str| HeadRows::whole(at(name), heads, key_dim);
    let three = |names: [&str; 3]| {
        let is_one = names[0] == names[1];
        let part =
            |idx: usize| HeadRows { num_rows: 3 * width, start: idx * width, ..rows(names[0]) };
        [0, 1, 2].map(|idx| if is_one { part(idx) } else { rows(names[idx]) })
    };
    let low_rank = |name: &str| HeadRows::whole(at(name), 1, key_dim);
    let [queries, keys, values] = three(form.projections);
    let spec = GatedDeltaSpec {
        queries,
        keys,
        values,
        gates: rows(form.gates),
        rates: HeadRows::whole(at("b_proj"), heads, 1),
        decays: rows(form.decays),
        convolutions: three(form.convolutions),
        norm: at("o_norm"),
        output: at("o_proj"),
        has_logistic_gates: true,
        kimi: Some(KimiDelta {
            decays: form.decays_down.map(low_rank),
            gates: form.gates_down.map(low_rank),
            rank: key_dim,
            log_decay_min: form.log_decay_min,
        }),
        ..unfused(module, sizes)
    };
    let all = [Dimension::KvHeads, Dimension::KvHeads, Dimension::Heads].map(|it| (it, width));
    let mut projections: Vec<TensorSpec> = if spec.queries.module == spec.keys.module {
        vec![projection(&spec.queries.module, hidden, &all)]
    } else {
        let three = [&spec.queries, &spec.keys, &spec.values].into_iter().zip(all);
        three.map(|(rows, own)| projection(&rows.module, hidden, &[own])).collect()
    };
    projections.push(projection(&spec.rates.module, hidden, &[(Dimension::Heads, heads)]));
    for (down, up) in [(form.decays_down, &spec.decays), (form.gates_down, &spec.gates)] {
        let whole =
            |input, output| Linear { role: TensorRole::Mixer, output, input, has_bias: false };
        projections.extend(down.iter().flat_map(|down| whole(hidden, key_dim).whole(&at(down))));
        let input = if down.is_some() { key_dim } else { hidden };
        projections.push(projection(&up.module, input, &[(Dimension::Heads, width)]));
    }
    block(hidden, spec, projections)
}

/// Returns the Kimi delta attention of GLM-5 Next at `module`. Originals have the tensors of Kimi Linear,
/// conversions those of [`kimi_joined`].
pub(super) fn kimi_either(
    module: &str,
    hidden: usize,
    sizes: GatedDeltaSizes,
    log_decay_min: f32,
) -> MixerBlock {
    let joined = kimi_joined(module, hidden, sizes, log_decay_min);
    let form = KimiForm { log_decay_min: Some(log_decay_min), ..KimiForm::LINEAR };
    let mut apart = kimi(module, hidden, sizes, form);
    let (Mixer::GatedDelta(spec), Mixer::GatedDelta(other)) = (&mut apart.mixer, joined.mixer)
    else {
        panic!("both are delta attention")
    };
    let name = format!("{}.weight", other.queries.module);
    spec.joined = Some(other);
    let is_in =
        |tensors: &[TensorSpec], it: &TensorSpec| tensors.iter().any(|own| own.name == it.name);
    let own = apart
        .tensors
        .iter()
        .filter(|it| !is_in(&joined.tensors, it))
        .map(|it| TensorSpec { presence: Presence::Without(name.clone()), ..it.clone() });
    let own: Vec<TensorSpec> = own.collect();
    let others = joined.tensors.into_iter().map(|it| {
        let is_common = is_in(&apart.tensors, &it);
        let presence = if is_common { Presence::Always } else { Presence::With(name.clone()) };
        TensorSpec { presence, ..it }
    });
    apart.tensors = others.chain(own).collect();
    apart
}

/// Returns Kimi delta attention at `module`: queries, keys and values in one projection and one
/// convolution; rates in one projection with what decays and gates are computed from. The decays'
/// logarithms are at least `log_decay_min`.
fn kimi_joined(
    module: &str,
    hidden: usize,
    sizes: GatedDeltaSizes,
    log_decay_min: f32,
) -> MixerBlock {
    let GatedDeltaSizes { value_heads: heads, key_dim, .. } = sizes;
    let at = |name: &str| format!("{module}.{name}");
    let width = heads * key_dim;
    let three = |name: &str| {
        [0, 1, 2].map(|idx| HeadRows {
            num_rows: 3 * width,
            start: idx * width,
            ..HeadRows::whole(at(name), heads, key_dim)
        })
    };
    let low_rank = |start: usize| {
        HeadRows::window(at("fbg_a_proj"), start..start + key_dim, 2 * key_dim + heads)
    };
    let [queries, keys, values] = three("qkv_proj");
    let spec = GatedDeltaSpec {
        queries,
        keys,
        values,
        gates: HeadRows::whole(at("g_b_proj"), heads, key_dim),
        rates: HeadRows { rows_per_head: 1, heads_per_group: heads, ..low_rank(key_dim) },
        decays: HeadRows::whole(at("f_b_proj"), heads, key_dim),
        convolutions: three("qkv_conv.conv"),
        norm: at("o_norm"),
        output: at("o_proj"),
        has_logistic_gates: true,
        kimi: Some(KimiDelta {
            decays: Some(low_rank(0)),
            gates: Some(low_rank(key_dim + heads)),
            rank: key_dim,
            log_decay_min: Some(log_decay_min),
        }),
        ..unfused(module, sizes)
    };
    let inward =
        [(Dimension::Whole, key_dim), (Dimension::Heads, heads), (Dimension::Whole, key_dim)];
    let of_heads = [(Dimension::Heads, width)];
    let projections = vec![
        projection(&at("qkv_proj"), hidden, &[(Dimension::KvHeads, 2 * width), of_heads[0]]),
        projection(&at("fbg_a_proj"), hidden, &inward),
        projection(&at("f_b_proj"), key_dim, &of_heads),
        projection(&at("g_b_proj"), key_dim, &of_heads),
    ];
    block(hidden, spec, projections)
}

/// Returns the kernels of the convolutions, which are in one tensor or in three.
fn kernels(spec: &GatedDeltaSpec) -> Vec<TensorSpec> {
    let GatedDeltaSizes { key_heads, value_heads, key_dim, value_dim, conv_width } = spec.sizes;
    let keys = CutSegment { dimension: Dimension::KvHeads, len: key_heads * key_dim };
    let values = CutSegment { dimension: Dimension::Heads, len: value_heads * value_dim };
    let mut tensors: Vec<TensorSpec> = Vec::new();
    for (rows, segment) in spec.convolutions.iter().zip([keys, keys, values]) {
        let name = format!("{}.weight", rows.module);
        match tensors.last_mut() {
            Some(TensorSpec { cut: TensorCut::Column(segments), name: last, .. })
                if *last == name =>
            {
                segments.push(segment);
            }
            _ => tensors.push(TensorSpec {
                name,
                role: TensorRole::Mixer,
                shape: vec![rows.num_rows, conv_width, 1],
                cut: TensorCut::Column(vec![segment]),
                is_quantizable: false,
                per_expert: None,
                fused: Vec::new(),
                presence: Presence::Always,
            }),
        }
    }
    tensors
}

/// Returns what is cached of a sequence: states, and the last inputs of the convolutions.
fn cache(sizes: GatedDeltaSizes) -> CacheKind {
    let GatedDeltaSizes { key_dim, value_dim, conv_width, .. } = sizes;
    let num_inputs = conv_width - 1;
    CacheKind::State {
        elements_per_head: (key_dim + num_inputs) * value_dim,
        elements_per_kv_head: 2 * num_inputs * key_dim,
    }
}
