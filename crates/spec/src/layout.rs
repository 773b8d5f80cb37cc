//! Layout of a model in a checkpoint: the size of its parts, and where each may be cut.

use std::collections::{BTreeMap, BTreeSet};

use jackalope_protocol::split::{HeadCounts, VOCAB_UNIT, inner_unit};

use crate::model::{CacheKind, FeedForward, HeadShape, ModelSpec};
use crate::ngrams::NgramSpec;
use crate::originals::NumberEdit;
use crate::report::UnusedTensors;
use crate::streams::StreamsSpec;
use crate::tensor::{CutSegment, Dimension, ElementType, TensorCut, TensorRole, TensorSpec};
use jackalope_config::quantization::QuantizationFormat;

/// A tensor of the model, as the checkpoint has it.
#[derive(Clone, Copy)]
pub(crate) struct StoredTensor<'a> {
    pub(crate) spec: &'a TensorSpec,
    pub(crate) format: Option<QuantizationFormat>,
    /// Size together with the scales and biases beside it.
    pub(crate) num_bytes: u64,
}

impl<'a> StoredTensor<'a> {
    /// Returns the tensor with the size that it has on ranks: matrices that are not quantised are
    /// converted to the type that the model is computed in.
    fn loaded(self, element_type: &ElementType) -> StoredTensor<'a> {
        if !self.is_converted() {
            return self;
        }
        let num_elements: usize = self.spec.shape.iter().product();
        StoredTensor { num_bytes: num_elements as u64 * element_type.size_bytes(), ..self }
    }

    fn is_converted(&self) -> bool {
        use TensorRole::{Embedding, Experts, Head, Mixer, Mlp};
        self.format.is_none()
            && self.spec.is_quantizable
            && matches!(self.spec.role, Embedding | Head | Mixer | Mlp | Experts)
    }
}

/// Layout of a model in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelLayout {
    /// Type that the model is computed in.
    pub element_type: ElementType,
    /// Whether head and embedding are one table.
    pub is_tied: bool,
    /// Weights of the embedding, the final norm and the head.
    pub outside: Vec<WeightPart>,
    /// The decoder layers, in order.
    pub layers: Vec<LayerLayout>,
    /// Tensors of the checkpoint that the model does not use.
    pub unused: Vec<UnusedTensors>,
    /// Sums over all layers and the rest of the model: weights, and what is cached.
    pub(crate) sums: LayoutSums,
    formats: BTreeMap<String, QuantizationFormat>,
    /// Names of the matrices that are not quantised and are counted in the type that the model is computed in.
    converted: BTreeSet<String>,
    /// What loading does to the numbers of tensors of an original.
    edits: BTreeMap<String, NumberEdit>,
}

/// Layout of a layer in a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerLayout {
    /// Its weights, by purpose and division.
    pub parts: Vec<WeightPart>,
    /// Kind of its cache.
    pub cache: CacheKind,
    /// Number of elements of a state that every rank keeps whole.
    pub whole_state_elements: usize,
    /// Fraction of the experts' weights that one token uses, from 0 to 1.
    pub active_experts: f64,
    /// Its attention heads, and the unit in which they are divided.
    pub heads: HeadCounts,
    /// The heads of a state space beside attention, if there is one.
    pub state_heads: Option<HeadCounts>,
    /// For each inner dimension, the size of its unit in elements; a unit is never divided.
    pub inner_units: BTreeMap<Dimension, usize>,
    /// Number of the layer whose keys and values it reads, or whose choice of positions it shares. Both
    /// must be on the same rank.
    pub source_layer: Option<usize>,
}

/// The whole model, by division: searches evaluate thousands of splits of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LayoutSums {
    /// Parts, with the fraction of them that one token uses.
    pub(crate) parts: Vec<(WeightPart, f64)>,
    /// Caches of the layers, with the number of heads.
    pub(crate) caches: Vec<(HeadCounts, HeadCache)>,
}

/// Bytes that the heads of layers cache of a sequence.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct HeadCache {
    /// A key-value head, for each position, if all positions are kept.
    pub(crate) per_position: u64,
    /// For each position, what every rank with heads keeps beside them.
    pub(crate) shared: u64,
    /// A key-value head, for each position, in layers with windows.
    pub(crate) per_window_position: u64,
    /// For each of the last positions, what every rank with heads keeps until its pool is whole.
    pub(crate) shared_window: u64,
    /// The state of a head.
    pub(crate) state: u64,
    /// The part of a state that belongs to a key-value head.
    pub(crate) kv_state: u64,
}

impl LayoutSums {
    fn add_part(&mut self, part: WeightPart, active: f64) {
        let is_same = |(known, fraction): &&mut (WeightPart, f64)| {
            (known.role, known.division, *fraction) == (part.role, part.division, active)
        };
        match self.parts.iter_mut().find(is_same) {
            Some((known, _)) => known.bytes += part.bytes,
            None => self.parts.push((part, active)),
        }
    }

    fn add_layer(&mut self, layer: &LayerLayout, element_type: &ElementType) {
        for part in &layer.parts {
            self.add_part(*part, layer.active_experts);
        }
        for (counts, cache) in layer.head_caches(element_type) {
            match self.caches.iter_mut().find(|(known, _)| *known == counts) {
                Some((_, known)) => {
                    known.per_position += cache.per_position;
                    known.shared += cache.shared;
                    known.per_window_position += cache.per_window_position;
                    known.shared_window += cache.shared_window;
                    known.state += cache.state;
                    known.kv_state += cache.kv_state;
                }
                None => self.caches.push((counts, cache)),
            }
        }
    }
}

/// Weights with the same purpose and the same division.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WeightPart {
    /// Purpose of the weights.
    pub role: TensorRole,
    /// How they are divided.
    pub division: Division,
    /// Size in bytes.
    pub bytes: u64,
}

/// How weights are divided among the ranks that share a layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Division {
    /// Not at all; every rank holds them.
    Whole,
    /// In units of a dimension.
    Units {
        /// Length of the dimension.
        full: usize,
        /// Size of the unit in elements; a unit is never divided.
        unit: usize,
    },
    /// By query heads.
    Heads(HeadCounts),
    /// By key and value heads.
    KvHeads(HeadCounts),
}

impl ModelLayout {
    /// Combines the tensors of a checkpoint in which nothing is missing.
    pub(crate) fn new(
        spec: &ModelSpec,
        element_type: ElementType,
        is_tied: bool,
        stored: &[StoredTensor<'_>],
    ) -> ModelLayout {
        let loaded = stored.iter().map(|it| (it.spec.name.as_str(), it.loaded(&element_type)));
        let by_name: BTreeMap<&str, StoredTensor<'_>> = loaded.collect();
        let find = |spec: &TensorSpec| &by_name[spec.name.as_str()];
        let group_size = |spec: &TensorSpec| find(spec).format.map(|it| it.group_size as usize);
        let units = HeadUnits::of(spec, group_size);
        let layers = spec.layers.iter().map(|layer| {
            let divisions = divisions(layer, &units, group_size);
            let mut parts = Vec::new();
            for tensor in layer.tensors.iter().filter(|it| by_name.contains_key(it.name.as_str())) {
                add_parts(&mut parts, find(tensor), |it| divisions[&it]);
            }
            let heads = units.counts(layer.mixer.heads());
            let state_heads = layer.mixer.state_heads().map(|shape| units.counts(shape));
            let inner_units = divisions.iter().filter_map(|(dimension, division)| match division {
                Division::Units { unit, .. } => Some((*dimension, *unit)),
                _ => None,
            });
            let inner_units = inner_units.collect();
            let active_experts = layer.experts().map_or(1.0, |experts| {
                let num_scores = experts.num_experts + experts.num_identity;
                experts.experts_per_token as f64 / num_scores as f64
            });
            let source_layer = layer.mixer.source_layer();
            let cache = layer.cache;
            let whole_state_elements = layer.ngrams.as_ref().map_or(0, NgramSpec::state_elements);
            LayerLayout {
                parts,
                cache,
                whole_state_elements,
                active_experts,
                heads,
                state_heads,
                inner_units,
                source_layer,
            }
        });
        let layers: Vec<LayerLayout> = layers.collect();
        let mut outside = Vec::new();
        let vocab = Division::Units { full: spec.vocab_size, unit: VOCAB_UNIT };
        let head = (!is_tied).then_some(&spec.head).into_iter().chain(&spec.head_bias);
        let norm = [&spec.embedding, &spec.norm].into_iter().chain(&spec.norm_bias);
        for tensor in norm.chain(head) {
            add_parts(&mut outside, find(tensor), |_| vocab);
        }
        if let Some(inputs) = &spec.per_layer_inputs {
            let rows = Division::Units { full: inputs.vocab_size, unit: VOCAB_UNIT };
            for tensor in inputs.tensors() {
                add_parts(&mut outside, find(tensor), |_| rows);
            }
        }
        let ends = spec.residuals.iter().flat_map(|it| it.end.tensors());
        for tensor in spec.streams.iter().flat_map(StreamsSpec::tensors).chain(ends) {
            add_parts(&mut outside, find(tensor), |_| Division::Whole);
        }
        let formats =
            stored.iter().filter_map(|it| Some((it.spec.module().to_owned(), it.format?)));
        let formats = formats.collect();
        let converted = stored.iter().filter(|it| it.is_converted());
        let converted = converted.map(|it| it.spec.name.clone()).collect();
        let layout = ModelLayout::of_parts(element_type, is_tied, outside, layers);
        ModelLayout { formats, converted, ..layout }
    }

    /// Creates the layout of a model with these weights, none of which is quantised.
    pub fn of_parts(
        element_type: ElementType,
        is_tied: bool,
        outside: Vec<WeightPart>,
        layers: Vec<LayerLayout>,
    ) -> ModelLayout {
        let mut sums = LayoutSums::default();
        outside.iter().for_each(|part| sums.add_part(*part, 1.0));
        layers.iter().for_each(|layer| sums.add_layer(layer, &element_type));
        let (formats, converted, edits) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        ModelLayout {
            element_type,
            is_tied,
            outside,
            layers,
            unused: Vec::new(),
            sums,
            formats,
            converted,
            edits,
        }
    }

    /// Returns the weights of the whole model, by purpose and division.
    pub fn parts(&self) -> impl Iterator<Item = &WeightPart> {
        self.sums.parts.iter().map(|(part, _)| part)
    }

    /// Describes the tensors that are not used, each kind in a line that begins with a line break;
    /// `size` formats a number of bytes.
    pub fn describe_unused(&self, size: impl Fn(u64) -> String) -> String {
        UnusedTensors::describe_all(&self.unused, size)
    }

    /// Returns the layout of an original, whose tensors of these names conversions have changed.
    pub(crate) fn with_edits(self, edits: BTreeMap<String, NumberEdit>) -> ModelLayout {
        ModelLayout { edits, ..self }
    }

    /// Whether the tensor of this name is counted as it is after its conversion to the type that the model is
    /// computed in, whatever its type in the checkpoint.
    pub fn is_counted_converted(&self, name: &str) -> bool {
        self.converted.contains(name)
    }

    /// Returns what loading does to the numbers of the tensor of this name; `None` if nothing.
    pub fn edit(&self, name: &str) -> Option<&NumberEdit> {
        self.edits.get(name)
    }

    /// Whether the layers from this one on can be on another rank than those before it: none of them
    /// reads the cache of one before it.
    pub fn can_begin_stage(&self, layer_idx: usize) -> bool {
        let mut later = self.layers[layer_idx..].iter();
        later.all(|layer| layer.source_layer.is_none_or(|source| layer_idx <= source))
    }

    /// Returns the number of stages into which the layers can be cut.
    pub fn num_stages_max(&self) -> usize {
        (0..self.layers.len()).filter(|&layer_idx| self.can_begin_stage(layer_idx)).count()
    }

    /// Returns the quantisation of the matrix at `module`; `None` if it is not quantised.
    pub fn format(&self, module: &str) -> Option<QuantizationFormat> {
        self.formats.get(module).copied()
    }
}

impl LayerLayout {
    /// Returns the size of the state that every rank keeps whole, in bytes.
    pub(crate) fn whole_state_bytes(&self) -> u64 {
        self.whole_state_elements as u64 * ElementType::F32.size_bytes()
    }

    /// Returns what its heads cache, and those of a state space beside attention.
    pub(crate) fn head_caches(&self, element_type: &ElementType) -> Vec<(HeadCounts, HeadCache)> {
        let mut caches = vec![(self.heads, self.head_cache(element_type))];
        let &CacheKind::PositionsAndState {
            elements_per_state_head, elements_per_state_group, ..
        } = &self.cache
        else {
            return caches;
        };
        let counts = self.state_heads.expect("a layer with both has a state space");
        let bytes = |elements: usize| elements as u64 * ElementType::F32.size_bytes();
        let state = HeadCache {
            state: bytes(elements_per_state_head),
            kv_state: bytes(elements_per_state_group),
            ..HeadCache::default()
        };
        caches.push((counts, state));
        caches
    }

    /// Returns what its heads cache.
    fn head_cache(&self, element_type: &ElementType) -> HeadCache {
        let bytes = |elements: usize| elements as u64 * ElementType::F32.size_bytes();
        let position = |elements: usize| elements as u64 * element_type.size_bytes();
        match self.cache {
            CacheKind::Positions { elements_per_kv_head, shared_elements } => HeadCache {
                per_position: position(elements_per_kv_head),
                shared: position(shared_elements),
                ..HeadCache::default()
            },
            CacheKind::PositionsAndState { elements_per_kv_head, .. } => {
                HeadCache { per_position: position(elements_per_kv_head), ..HeadCache::default() }
            }
            CacheKind::Window { elements_per_kv_head, .. } => HeadCache {
                per_window_position: position(elements_per_kv_head),
                ..HeadCache::default()
            },
            CacheKind::Pools { elements_per_kv_head, shared_elements, last_elements, .. } => {
                HeadCache {
                    per_position: position(elements_per_kv_head),
                    shared: position(shared_elements),
                    shared_window: position(last_elements),
                    ..HeadCache::default()
                }
            }
            CacheKind::State { elements_per_head, elements_per_kv_head } => HeadCache {
                state: bytes(elements_per_head),
                kv_state: bytes(elements_per_kv_head),
                ..HeadCache::default()
            },
            CacheKind::None => HeadCache::default(),
        }
    }
}

/// For each shape of heads, the quantisation group of the output projections. One unit for all
/// layers, because the caches of all layers have one shape.
struct HeadUnits(Vec<(HeadShape, usize)>);

impl HeadUnits {
    fn of(spec: &ModelSpec, group_size: impl Fn(&TensorSpec) -> Option<usize>) -> HeadUnits {
        let mut units: Vec<(HeadShape, usize)> = Vec::new();
        for layer in &spec.layers {
            let state = layer.mixer.state_heads().map(|shape| (shape, Dimension::StateHeads));
            for (shape, dimension) in
                [(layer.mixer.heads(), Dimension::Heads)].into_iter().chain(state)
            {
                let group = row_group(&layer.tensors, dimension, &group_size).unwrap_or(1);
                match units.iter_mut().find(|(known, _)| *known == shape) {
                    Some((_, common)) => *common = lcm(*common, group),
                    None => units.push((shape, group)),
                }
            }
        }
        HeadUnits(units)
    }

    fn counts(&self, shape: HeadShape) -> HeadCounts {
        let HeadShape { heads, kv_heads, head_dim } = shape;
        let known = self.0.iter().find(|(known, _)| *known == shape);
        let group = known.map_or(1, |(_, group)| *group);
        HeadCounts::new(heads, kv_heads, head_dim, group)
    }
}

/// Returns the common multiple of the groups in which the matrices are quantised whose input is
/// divided by `dimension`; `None` if none is quantised.
fn row_group(
    tensors: &[TensorSpec],
    dimension: Dimension,
    group_size: impl Fn(&TensorSpec) -> Option<usize>,
) -> Option<usize> {
    let rows = tensors.iter().filter(|tensor| tensor.cut == TensorCut::Row(dimension));
    rows.filter_map(group_size).reduce(lcm)
}

/// Returns how each dimension of a layer is divided.
fn divisions(
    layer: &crate::model::LayerSpec,
    units: &HeadUnits,
    group_size: impl Fn(&TensorSpec) -> Option<usize>,
) -> BTreeMap<Dimension, Division> {
    let counts = units.counts(layer.mixer.heads());
    let mut divisions = BTreeMap::from([
        (Dimension::Heads, Division::Heads(counts)),
        (Dimension::KvHeads, Division::KvHeads(counts)),
        (Dimension::Whole, Division::Whole),
    ]);
    if let Some(shape) = layer.mixer.state_heads() {
        let counts = units.counts(shape);
        divisions.insert(Dimension::StateHeads, Division::Heads(counts));
        divisions.insert(Dimension::StateGroups, Division::KvHeads(counts));
    }
    let dense = match &layer.feed_forward {
        FeedForward::Mlp(mlp) => Some((Dimension::Inner, mlp.inner)),
        FeedForward::Experts(experts) => {
            experts.beside.as_ref().map(|beside| (Dimension::Inner, beside.mlp.inner))
        }
        FeedForward::None => None,
    };
    let experts = layer.experts().into_iter().flat_map(|experts| {
        let shared = experts.shared.as_ref().map(|it| (Dimension::SharedInner, it.inner));
        [(Dimension::ExpertInner, experts.inner)].into_iter().chain(shared)
    });
    for (dimension, full) in dense.into_iter().chain(experts) {
        let unit = inner_unit(full, row_group(&layer.tensors, dimension, &group_size));
        divisions.insert(dimension, Division::Units { full, unit });
    }
    if let Some(ngrams) = &layer.ngrams {
        let rows = Division::Units { full: ngrams.table.part_rows, unit: 1 };
        divisions.insert(Dimension::NgramRows, rows);
    }
    divisions
}

/// Adds a tensor to the parts of a layer.
fn add_parts(
    parts: &mut Vec<WeightPart>,
    stored: &StoredTensor<'_>,
    division: impl Fn(Dimension) -> Division,
) {
    let StoredTensor { spec, num_bytes, .. } = stored;
    let mut add = |division: Division, bytes: u64| {
        let role = spec.role;
        match parts.iter_mut().find(|it| (it.role, it.division) == (role, division)) {
            Some(part) => part.bytes += bytes,
            None => parts.push(WeightPart { role, division, bytes }),
        }
    };
    match &spec.cut {
        TensorCut::Replicated => add(Division::Whole, *num_bytes),
        TensorCut::Row(dimension) | TensorCut::Stack(dimension) => {
            add(division(*dimension), *num_bytes)
        }
        TensorCut::Column(segments) => {
            let num_rows: usize = segments.iter().map(|segment| segment.len).sum();
            for &CutSegment { dimension, len } in segments {
                // A row has a whole number of bytes.
                add(division(dimension), num_bytes / num_rows.max(1) as u64 * len as u64);
            }
        }
    }
}

/// Returns the least common multiple of two positive numbers.
fn lcm(a: usize, b: usize) -> usize {
    fn gcd(a: usize, b: usize) -> usize {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    a / gcd(a, b) * b
}
