//! The decoder layers of a rank, and their connection to the layers of other ranks.

use std::ops::Range;

use jackalope_mlx::{Array, Dtype};

use super::kernel::dim;
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::Parallel;
use crate::weights::Weights;

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
    /// Loads the layers of this rank, out of the `num_layers` layers at `w`. `load` gets a layer's
    /// tensors and its index.
    pub(crate) fn load(
        w: &Weights<'_>,
        (num_layers, hidden): (usize, usize),
        parallel: &Parallel,
        load: impl Fn(&Weights<'_>, usize) -> Result<L, LoadError>,
    ) -> Result<Stack<L>, LoadError> {
        let range = parallel.layers(num_layers)?;
        for elsewhere in (0..num_layers).filter(|idx| !range.contains(idx)) {
            w.at(elsewhere).leave_to_others();
        }
        let layers = range.clone().map(|idx| load(&w.at(idx), idx));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let (dtype, parallel) = (w.dtype(), parallel.clone());
        Ok(Stack { layers, range, num_layers, hidden, dtype, parallel })
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

    /// Returns the range of the model's layers that are here.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the number of layers of the whole model.
    pub(crate) fn num_layers(&self) -> usize {
        self.num_layers
    }
}
