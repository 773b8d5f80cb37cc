//! What surrounds a block between two states of the residual stream.

use jackalope_mlx::{Array, CompiledFunction};

use super::stream_mix::StreamMix;
use jackalope_parallel::norm::Norm;

/// The norms and factors around a block: `scale * (stream + factor * output(block(input(stream))))`.
#[derive(Debug)]
pub(crate) struct BlockFrame {
    /// What the block reads of several streams, before the norm; `None` if it reads the current one.
    pub(crate) mix: Option<StreamMix>,
    /// Norm of the stream that the block reads; `None` if it reads the stream itself.
    pub(crate) input: Option<Norm>,
    /// Norm of what the block returns.
    pub(crate) output: Option<Norm>,
    /// Factor of what is added to the stream.
    pub(crate) factor: f32,
    /// Factor of the stream after the block.
    pub(crate) scale: f32,
    /// What the block computes with MLX of each row alone, from its norm on.
    pub(crate) compiled: CompiledFunction,
}

impl BlockFrame {
    fn normed(&self, x: &Array) -> Array {
        self.input.as_ref().map_or(x.clone(), |norm| norm.stock(x))
    }
}

/// What a block reads, for MLX.
#[derive(Debug)]
pub(super) struct StockInput<'a> {
    /// The stream before the block's norm, `[tokens, hidden]`.
    x: Array,
    frame: &'a BlockFrame,
}

impl StockInput<'_> {
    pub(super) fn new(x: Array, frame: &BlockFrame) -> StockInput<'_> {
        StockInput { x, frame }
    }

    /// Returns the rows that the block reads, `[tokens, hidden]`.
    pub(super) fn normed(&self) -> Array {
        self.frame.normed(&self.x)
    }

    /// Returns `work([normed, …others])`. MLX prepares this function, the only one of the block: `work` may read
    /// nothing else that changes.
    pub(super) fn compiled(
        &self,
        others: &[&Array],
        work: impl Fn(&[Array]) -> Vec<Array>,
    ) -> Vec<Array> {
        let inputs: Vec<&Array> = [&self.x].into_iter().chain(others.iter().copied()).collect();
        self.frame.compiled.call(&inputs, |inputs| {
            let mut inputs = inputs.to_vec();
            inputs[0] = self.frame.normed(&inputs[0]);
            work(&inputs)
        })
    }
}
