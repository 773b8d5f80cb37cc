//! The decoder layers of a rank, and their connection to the layers of other ranks.

use std::ops::Range;

use jackalope_mlx::{Array, Dtype, dim};

use super::per_layer::LayerInput;
use super::residual::Residual;
use super::stream_mix::apart;
use super::token_rows::TokenRows;
use jackalope_parallel::Parallel;
use jackalope_weights::LoadError;

/// Consecutive layers. In a pipeline the stream is received from the rank with the layers before
/// these, and sent to the rank with the layers after them.
#[derive(Debug)]
pub(crate) struct Stack<L> {
    layers: Vec<L>,
    /// Range of the model's layers that are here.
    range: Range<usize>,
    sizes: StackSizes,
    dtype: Dtype,
    parallel: Parallel,
}

/// The sizes of all layers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackSizes {
    pub(crate) num_layers: usize,
    /// Width of the stream.
    pub(crate) hidden: usize,
    /// Number of weights with which the next block reads the streams, if blocks pass them on.
    pub(crate) num_weights: usize,
    /// Width of what each layer reads beside it; 0 if nothing.
    pub(crate) input_width: usize,
    /// Number of layers of a block at whose end the stream is kept for all later layers; `None` if
    /// they read only the current stream.
    pub(crate) block_layers: Option<usize>,
    /// Number of the first layers of which some read the tokens of the step; 0 if none do.
    pub(crate) token_layers: usize,
}

/// What passes from layer to layer.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) residual: Residual,
    /// What the layers from here on read beside it, `[tokens, layers * width]`.
    pub(crate) inputs: Option<Array>,
    /// The tokens of the step, if layers from here on read them.
    pub(crate) tokens: Option<TokenRows>,
}

/// What a layer reads beside the stream.
pub(crate) struct Beside<'a> {
    pub(crate) input: Option<LayerInput<'a>>,
    pub(crate) tokens: Option<&'a TokenRows>,
}

impl<L> Stack<L> {
    /// Loads the layers of this rank. `load` gets a layer's index.
    pub(crate) fn load(
        sizes: StackSizes,
        dtype: Dtype,
        parallel: &Parallel,
        load: impl Fn(usize) -> Result<L, LoadError>,
    ) -> Result<Stack<L>, LoadError> {
        let range = parallel.layers(sizes.num_layers)?;
        let layers = range.clone().map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(Stack { layers, range, sizes, dtype, parallel: parallel.clone() })
    }

    /// Returns the last layer's output for every row, `[tokens, hidden]`; if another rank has that
    /// layer, the activations that are sent on. `embed` creates the beginning of the stream on the
    /// rank that has the first layer; `finish` is applied on the rank that has the last one.
    pub(crate) fn forward(
        &self,
        num_rows: usize,
        embed: impl FnOnce() -> Stream,
        mut add: impl FnMut(Residual, &L, Beside<'_>) -> Residual,
        finish: impl FnOnce(Residual) -> Array,
    ) -> Array {
        let parallel = &self.parallel;
        let Stream { residual, inputs, tokens } =
            if parallel.has_first_layer() { embed() } else { self.receive(num_rows) };
        let width = self.sizes.input_width;
        let layers = self.layers.iter().enumerate();
        let end = layers.fold(residual, |residual, (idx, layer)| {
            let input = inputs.as_ref().map(|rows| LayerInput { rows, first: idx * width });
            add(residual, layer, Beside { input, tokens: tokens.as_ref() })
        });
        if parallel.has_last_layer() {
            return finish(end);
        }
        let end = end.finish_all();
        if self.range.end < self.sizes.token_layers {
            let columns = tokens.expect("later layers read them").columns(self.dtype);
            return parallel.send(&Array::concatenate(&[&end, &columns], 1));
        }
        match inputs {
            None => parallel.send(&end),
            Some(rows) => {
                let rest = rows.slice_axis(1, dim(self.layers.len() * width), rows.dim(1));
                parallel.send(&Array::concatenate(&[&end, &rest], 1))
            }
        }
    }

    /// Receives the stream, and beside it what this rank's layers and those after them read.
    fn receive(&self, num_rows: usize) -> Stream {
        let StackSizes { num_layers, hidden: own, input_width, block_layers, token_layers, .. } =
            self.sizes;
        let parallel = &self.parallel;
        let with_weights = own + self.sizes.num_weights * Dtype::F32.size_bytes();
        if self.range.start < token_layers {
            assert!(input_width == 0 && block_layers.is_none(), "no family has these and tokens");
            let shape = [dim(num_rows), dim(with_weights + TokenRows::COLUMNS)];
            let received = parallel.receive(&shape, self.dtype);
            let (stream, tokens) = TokenRows::take_from(&received, with_weights, parallel);
            let residual = Residual::of_sent(&stream, own, parallel);
            return Stream { residual, inputs: None, tokens: Some(tokens) };
        }
        if own < with_weights {
            assert!(input_width == 0 && block_layers.is_none(), "no family has these and weights");
            let received = parallel.receive(&[dim(num_rows), dim(with_weights)], self.dtype);
            let residual = Residual::of_sent(&received, own, parallel);
            return Stream { residual, inputs: None, tokens: None };
        }
        let num_earlier = block_layers.map_or(0, |len| self.range.start.div_ceil(len));
        let hidden = (num_earlier + 1) * own;
        let inputs_width = (num_layers - self.range.start) * input_width;
        let received = parallel.receive(&[dim(num_rows), dim(hidden + inputs_width)], self.dtype);
        if inputs_width == 0 {
            let (earlier, h) = apart(&received, own);
            let residual = Residual::new(h, parallel).after(earlier);
            return Stream { residual, inputs: None, tokens: None };
        }
        let residual = received.slice_axis(1, 0, dim(hidden));
        let inputs = received.slice_axis(1, dim(hidden), dim(hidden + inputs_width));
        Stream {
            residual: Residual::new(residual.contiguous(), parallel),
            inputs: Some(inputs.contiguous()),
            tokens: None,
        }
    }

    /// Returns the layers of this rank, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &L> {
        self.layers.iter()
    }

    /// Returns the range of the model's layers that are here.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the number of layers of the whole model.
    pub(crate) fn num_layers(&self) -> usize {
        self.sizes.num_layers
    }
}
