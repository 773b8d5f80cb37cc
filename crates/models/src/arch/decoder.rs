//! The decoder that all architectures share: embedding, layers, final norm, head.

use jackalope_mlx::Array;
use jackalope_spec::{LayerSpec, StreamsSpec};

use super::layer::DecoderLayer;
use super::parts::LayerParts;
use super::{Dimensions, Network};
use crate::layers::{
    Beside, Embedding, HasBias, Head, Heads, Norm, NormSettings, PerLayerInputs, Residual, Ropes,
    Stack, StackSizes, Stream, StreamEnds, StreamMix, StreamShape, TableSize, TokenRows,
    vocabulary,
};
use crate::split::Cut;
use crate::step::{Step, StepTokens};
use jackalope_cache::LayerCacheShape;
use jackalope_parallel::Parallel;
use jackalope_weights::LoadError;
use jackalope_weights::Weights;
use jackalope_weights::checkpoint::Checkpoint;

/// A network of decoder layers.
#[derive(Debug)]
pub(super) struct Decoder {
    embed_tokens: Embedding,
    /// What the layers read beside the stream, on ranks that compute it.
    per_layer_inputs: Option<PerLayerInputs>,
    /// Set if there are several streams.
    streams: Option<StreamEnds>,
    /// What the last norm reads of the streams of all blocks of layers, if later ones read them.
    mix: Option<StreamMix>,
    layers: Stack<DecoderLayer>,
    /// `None` if a gate reads the streams in its place.
    norm: Option<Norm>,
    lm_head: Head,
    /// Whether there are layers that read the tokens of a step.
    reads_tokens: bool,
    parallel: Parallel,
    hidden_size: usize,
    context_tokens: u32,
    heads: Heads,
}

impl Decoder {
    /// Loads this rank's part of the network.
    ///
    /// # Errors
    /// Fails if a tensor cannot be read, or the split is for another number of layers.
    pub(super) fn load(
        w: &Weights<'_>,
        checkpoint: &Checkpoint,
        parallel: &Parallel,
    ) -> Result<Decoder, LoadError> {
        let Checkpoint { spec, layout, .. } = checkpoint;
        let (hidden, num_layers) = (spec.hidden_size, spec.layers.len());
        let table = w.at(spec.embedding.module());
        let head = (!layout.is_tied).then(|| w.at(spec.head.module()));
        let size = TableSize { vocab: spec.vocab_size, hidden };
        let head_bias = HasBias::when(spec.head_bias.is_some());
        let (embed_tokens, lm_head) = vocabulary(&table, head.as_ref(), size, head_bias, parallel)?;
        let embed_tokens = embed_tokens.scaled(spec.embedding_scale);
        let ropes = &Ropes::default();
        let load = |layer_idx: usize| {
            let (layer, layout) = (&spec.layers[layer_idx], &layout.layers[layer_idx]);
            let parts = LayerParts {
                cache_idx: spec.num_caches(0..layer_idx),
                is_last: layer_idx + 1 == num_layers,
                spec: layer,
                layout,
                model: spec,
                ropes,
                root: w,
                parallel,
            };
            DecoderLayer::load(&parts)
        };
        let inputs = spec.per_layer_inputs.as_ref();
        let input_width = inputs.map_or(0, |inputs| inputs.width);
        let num_streams = spec.streams.as_ref().map_or(1, StreamsSpec::num_streams);
        let block_layers = spec.residuals.as_ref().map(|it| it.block_layers);
        let hidden_of_all = num_streams * hidden;
        let last_reader = spec.layers.iter().rposition(LayerSpec::reads_tokens);
        let token_layers = last_reader.map_or(0, |last| last + 1);
        let passes_weights = spec.streams.as_ref().is_some_and(StreamsSpec::passes_weights);
        let sizes = StackSizes {
            num_layers,
            hidden: hidden_of_all,
            num_weights: if passes_weights { num_streams } else { 0 },
            input_width,
            block_layers,
            token_layers,
        };
        let layers = Stack::load(sizes, w.dtype(), parallel, load)?;
        let settings = NormSettings { kind: spec.norm_kind, eps: spec.norm_eps };
        let streams = spec.streams.as_ref();
        let shape = StreamShape::of(spec);
        let streams = streams.map(|streams| StreamEnds::load(w, streams, shape, parallel));
        let inputs =
            inputs.map(|inputs| PerLayerInputs::load(w, inputs, hidden, settings, parallel));
        let is_gated = matches!(spec.streams, Some(StreamsSpec::Gated { .. }));
        let norm = || Norm::load(&w.at(spec.norm.module()), hidden, settings, parallel);
        let norm = (!is_gated).then(norm).transpose()?;
        let mix = spec.residuals.as_ref().map(|it| StreamMix::load(w, &it.end, spec.norm_eps));
        Ok(Decoder {
            embed_tokens,
            per_layer_inputs: inputs.transpose()?.flatten(),
            streams: streams.transpose()?,
            mix: mix.transpose()?,
            heads: reported_heads(&layers, parallel),
            layers,
            norm,
            lm_head: lm_head.finishing(spec.logits),
            reads_tokens: 0 < token_layers,
            parallel: parallel.clone(),
            hidden_size: hidden,
            context_tokens: spec.context_tokens,
        })
    }
}

/// Returns the heads of the first layer with attention; of the first layer with another mixer if none
/// has, and no heads if no layer has a mixer.
fn reported_heads(layers: &Stack<DecoderLayer>, parallel: &Parallel) -> Heads {
    let attention = layers.iter().find(|layer| layer.has_attention());
    let heads = attention.into_iter().chain(layers.iter()).find_map(DecoderLayer::heads);
    heads.cloned().unwrap_or_else(|| Heads::none(parallel))
}

impl Network for Decoder {
    fn forward(&self, tokens: StepTokens<'_>, step: &mut Step<'_, '_>) -> Array {
        let embed = || match &self.per_layer_inputs {
            Some(inputs) => {
                let (residual, inputs) = inputs.forward(&self.embed_tokens, tokens);
                Stream { residual, inputs: Some(inputs), tokens: None }
            }
            None => {
                Stream { residual: self.embed_tokens.forward(tokens), inputs: None, tokens: None }
            }
        };
        let add = |h, layer: &DecoderLayer, beside: Beside<'_>| layer.forward(h, beside, step);
        let embed = || {
            let Stream { residual, inputs, .. } = embed();
            let residual = match &self.streams {
                Some(streams) => streams.begin(residual),
                None => residual,
            };
            let tokens = self.reads_tokens.then(|| TokenRows::of_step(tokens, &self.parallel));
            Stream { residual, inputs, tokens }
        };
        let finish = |end: Residual| match (&self.streams, &self.mix) {
            (Some(streams), _) => streams.end(end),
            (None, Some(mix)) => end.mixed(mix),
            (None, None) => end.finish(),
        };
        let h = self.layers.forward(tokens.host.len(), embed, add, finish);
        let has_all_rows = !self.layers.iter().any(DecoderLayer::keeps_needed_rows);
        if has_all_rows && self.parallel.has_last_layer() { step.needed_rows(&h) } else { h }
    }

    fn norm(&self, h: &Array) -> Array {
        self.norm.as_ref().map_or(h.clone(), |norm| norm.forward(h))
    }

    fn head(&self, h: &Array) -> Array {
        self.lm_head.forward(h)
    }

    fn cache_shapes(&self) -> Vec<LayerCacheShape> {
        self.layers.iter().flat_map(DecoderLayer::cache_shapes).collect()
    }

    fn dimensions(&self) -> Dimensions {
        let inner = self.layers.iter().find_map(DecoderLayer::inner);
        Dimensions {
            num_layers: self.layers.num_layers(),
            layers: self.layers.range(),
            hidden_size: self.hidden_size,
            context_tokens: self.context_tokens,
            heads: self.heads.clone(),
            mlp: inner.cloned().unwrap_or_else(|| Cut::new(0, 0..0)),
            vocab: self.lm_head.rows(&self.embed_tokens),
        }
    }
}
