//! The decoder layers of a rank, and what joins them to those of other ranks.

use std::ops::Range;

use jackalope_mlx::{Array, Dtype};

use super::kernel::dim;
use super::residual::Residual;
use crate::error::LoadError;
use crate::parallel::Parallel;
use crate::weights::Weights;

/// Layers that follow one another. In a pipeline the stream comes from the rank with the layers
/// before these, and goes to the one with those after.
#[derive(Debug)]
pub(crate) struct Stack<L> {
    layers: Vec<L>,
    /// Which of the model's they are.
    range: Range<usize>,
    num_layers: usize,
    hidden: usize,
    dtype: Dtype,
    parallel: Parallel,
}

impl<L> Stack<L> {
    /// Loads those of `num_layers` layers at `w` that this rank has. `load` is given a layer's
    /// tensors and its number.
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

    /// The last layer's output for every row, `[tokens, hidden]`; if that layer is another rank's,
    /// what is sent on. `embed` gives the stream's begin where the first layer is.
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

    /// The first layer of this rank: all are cut alike.
    pub(crate) fn first(&self) -> &L {
        &self.layers[0]
    }

    /// Which of the model's layers are here.
    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Layers of the whole model.
    pub(crate) fn num_layers(&self) -> usize {
        self.num_layers
    }
}
