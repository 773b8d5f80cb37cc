//! The decoder layers of a rank, and their connection to the layers of other ranks.

use std::ops::Range;

use jackalope_mlx::{Array, Dtype};

use super::kernel::dim;
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::Parallel;

/// Consecutive layers. In a pipeline the stream is received from the rank with the layers before
/// these, and sent to the rank with the layers after them.
#[derive(Debug)]
pub(crate) struct Stack<L> {
    layers: Vec<L>,
    /// Range of the model's layers that are here.
    range: Range<usize>,
    num_layers: usize,
    hidden: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl<L> Stack<L> {
    /// Loads the layers of this rank, out of `num_layers`. `load` gets a layer's index.
    pub(crate) fn load(
        num_layers: usize,
        hidden: usize,
        dtype: Dtype,
        parallel: &Parallel,
        load: impl Fn(usize) -> Result<L, LoadError>,
    ) -> Result<Stack<L>, LoadError> {
        let range = parallel.layers(num_layers)?;
        let layers = range.clone().map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(Stack { layers, range, num_layers, hidden, dtype, parallel: parallel.clone() })
    }

    /// Returns the last layer's output for every row, `[tokens, hidden]`; if another rank has that
    /// layer, the activations that are sent on. `embed` creates the beginning of the stream on the
    /// rank that has the first layer.
    pub(crate) fn forward(
        &self,
        num_rows: usize,
        embed: impl FnOnce() -> Residual,
        mut add: impl FnMut(Residual, &L) -> Residual,
    ) -> Array {
        let parallel = &self.parallel;
        let begin = if parallel.has_first_layer() {
            embed()
        } else {
            let received = parallel.receive(&[dim(num_rows), dim(self.hidden)], self.dtype);
            Residual::new(received, parallel)
        };
        let end = self.layers.iter().fold(begin, &mut add).finish();
        if parallel.has_last_layer() { end } else { parallel.send(&end) }
    }

    /// Returns the first layer of this rank; all layers are divided in the same way.
    pub(crate) fn first(&self) -> &L {
        &self.layers[0]
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
        self.num_layers
    }
}
