//! What a layer is made from.

use jackalope_mlx::{CompiledFunction, Dtype};
use jackalope_spec::{
    BlockNorms, HeadRows, InwardModules, LayerLayout, LayerResiduals, LayerSpec, MlpModules,
    ModelSpec, NormKind, StreamReader,
};

use crate::layers::{
    BlockFrame, MlpWeights, Norm, NormSettings, PerLayerReader, ReaderSizes, Ropes, StreamMix,
};
use jackalope_parallel::Parallel;
use jackalope_weights::LoadError;
use jackalope_weights::{Part, Weights};

/// What a layer is made from.
#[derive(Clone, Copy)]
pub(super) struct LayerParts<'a, 'w> {
    /// Number of mixers before this one, each of which has a cache.
    pub(super) cache_idx: usize,
    /// Whether it is the model's last layer.
    pub(super) is_last: bool,
    pub(super) spec: &'a LayerSpec,
    pub(super) layout: &'a LayerLayout,
    pub(super) model: &'a ModelSpec,
    pub(super) ropes: &'a Ropes,
    /// The root of all tensors' names.
    pub(super) root: &'a Weights<'w>,
    pub(super) parallel: &'a Parallel,
}

impl LayerParts<'_, '_> {
    /// Loads the norm at `w`, of vectors of `width` elements that are not the stream.
    pub(super) fn norm(&self, w: &Weights<'_>, width: usize) -> Result<Norm, LoadError> {
        Norm::load(w, width, self.vector_settings(), self.parallel)
    }

    /// Returns how norms of vectors that are not the stream normalise: without biases.
    pub(super) fn vector_settings(&self) -> NormSettings {
        let kind = NormKind { has_bias: false, ..self.model.norm_kind };
        NormSettings { kind, eps: self.model.norm_eps }
    }

    /// Loads the norms around a block; the stream is multiplied by `scale` after it.
    pub(super) fn frame(&self, norms: &BlockNorms, scale: f32) -> Result<BlockFrame, LoadError> {
        let load = |module: &Option<String>| {
            let ModelSpec { hidden_size, norm_kind: kind, norm_eps, .. } = *self.model;
            let eps = self.spec.norms.eps.unwrap_or(norm_eps);
            let settings = NormSettings { kind, eps };
            let module = module.as_ref().map(|module| self.root.at(module));
            module.map(|w| Norm::load(&w, hidden_size, settings, self.parallel)).transpose()
        };
        let factor = self.spec.residual_factor;
        let (input, output) = (load(&norms.input)?, load(&norms.output)?);
        let compiled = CompiledFunction::default();
        Ok(BlockFrame { mix: None, input, output, factor, scale, compiled })
    }

    /// Like [`LayerParts::frame`], for a block that reads what `reader` makes of all streams, if there are
    /// several.
    pub(super) fn mixed_frame(
        &self,
        norms: &BlockNorms,
        reader: impl Fn(&LayerResiduals) -> &StreamReader,
        scale: f32,
    ) -> Result<BlockFrame, LoadError> {
        let load = |it| StreamMix::load(self.root, reader(it), self.model.norm_eps);
        let mix = self.spec.residuals.as_ref().map(load).transpose()?;
        Ok(BlockFrame { mix, ..self.frame(norms, scale)? })
    }

    /// Loads the factor of the stream after the layer.
    pub(super) fn stream_scale(&self) -> Result<f32, LoadError> {
        let Some(name) = &self.spec.stream_scale else { return Ok(1.0) };
        Ok(self.root.at(name).vector_as(Dtype::F32, 1, Part::Whole)?.item::<f32>()?)
    }

    /// Loads what reads the layer's input beside the stream, after which it is multiplied by `scale`.
    pub(super) fn reader(&self, scale: f32) -> Result<Option<PerLayerReader>, LoadError> {
        let ModelSpec { hidden_size: hidden, norm_kind: kind, norm_eps: eps, .. } = *self.model;
        let inputs = self.model.per_layer_inputs.as_ref();
        let Some((block, inputs)) = self.spec.per_layer_input.as_ref().zip(inputs) else {
            return Ok(None);
        };
        let sizes = ReaderSizes { hidden, width: inputs.width, scale };
        let settings = NormSettings { kind, eps };
        PerLayerReader::load(self.root, block, sizes, settings, self.parallel).map(Some)
    }
}

/// Returns the tensors of a dense block with `inner` inner elements.
pub(super) fn mlp_weights<'a>(
    root: &Weights<'a>,
    modules: &MlpModules,
    inner: usize,
) -> MlpWeights<'a> {
    let (gate_proj, up_proj) = match &modules.inward {
        InwardModules::Apart([gate, up]) => (Some(root.at(gate)), root.at(up)),
        InwardModules::Ungated(up) => (None, root.at(up)),
        InwardModules::Either { apart: [gate, up], stacked } if !root.at(stacked).has("weight") => {
            (Some(root.at(gate)), root.at(up))
        }
        InwardModules::Stacked(both) | InwardModules::Either { stacked: both, .. } => {
            let rows = |first: usize| {
                root.rows(HeadRows::window(both.clone(), first..first + inner, 2 * inner))
            };
            (Some(rows(0)), rows(inner))
        }
    };
    MlpWeights { gate_proj, up_proj, down_proj: root.at(&modules.down) }
}
