//! Two dense blocks with a mixer between them, and experts beside that mixer (Meituan 2025,
//! "LongCat-Flash", section 2.2).
//!
//! ```text
//!   stream ─ norm ─┬─ dense block ─ + ─ mixer ─ norm ─ dense block ─ + ─▶ stream
//!                  └─ experts ──────────────────────────────────────┘
//! ```
//!
//! This rank's part of the experts' product waits for that of the second dense block; both are summed
//! over the ranks at once.

use std::sync::{Arc, Mutex, PoisonError};

use jackalope_kernels::{Elements, Threads};
use jackalope_mlx::Array;

use super::experts::SparseMlp;
use super::frame::BlockFrame;
use super::mlp::Mlp;
use super::residual::Residual;
use crate::split::Cut;
use jackalope_parallel::output::{BlockOutput, stock_sum_products, sum_products};
use jackalope_parallel::{Compute, Parallel};

/// Two dense blocks, and experts that read what the first one reads.
#[derive(Debug)]
pub(crate) struct Shortcut {
    dense: [Mlp; 2],
    experts: SparseMlp,
    parallel: Parallel,
}

/// This rank's part of the experts' product, which is added with the second dense block. `None` if
/// this rank has no part of the experts.
#[derive(Debug)]
pub(crate) enum ShortcutSum {
    /// Written by the node of the first dense block, before that of the second one is computed.
    Kernels(Arc<Mutex<Option<Vec<f64>>>>),
    Stock(Option<Array>),
}

impl Shortcut {
    pub(crate) fn new(dense: [Mlp; 2], experts: SparseMlp, parallel: &Parallel) -> Shortcut {
        assert!(experts.is_one_product(), "what spans both halves is one product");
        Shortcut { dense, experts, parallel: parallel.clone() }
    }

    /// Adds the first dense block to the stream, and computes the experts.
    pub(crate) fn begin(&self, residual: Residual, frame: &BlockFrame) -> (Residual, ShortcutSum) {
        let [dense, _] = &self.dense;
        let output = self.output(dense);
        let Compute::Kernels(threads) = self.parallel.compute() else {
            let mut sum = None;
            let residual = residual.stock_block(frame, output, |x| {
                sum = self.experts.stock(x, None);
                dense.stock(x)
            });
            return (residual, ShortcutSum::Stock(sum));
        };
        let sum = Arc::<Mutex<Option<Vec<f64>>>>::default();
        let (held, experts, work) =
            (Arc::clone(&sum), self.experts.kernel(None), dense_work(dense));
        let residual = residual.kernel_block(frame, output, threads, move |x, threads| {
            let product = experts.product(x, threads);
            // A poisoned lock means that a kernel panicked, and its step has failed.
            *held.lock().unwrap_or_else(PoisonError::into_inner) = product;
            work(x, threads).unwrap_or_else(|| vec![0.0; x.len()])
        });
        (residual, ShortcutSum::Kernels(sum))
    }

    /// Adds the second dense block and the experts' product to the stream.
    pub(crate) fn finish(
        &self,
        residual: Residual,
        frame: &BlockFrame,
        sum: ShortcutSum,
    ) -> Residual {
        let [_, dense] = &self.dense;
        let output = self.output(dense);
        match (self.parallel.compute(), sum) {
            (Compute::Kernels(threads), ShortcutSum::Kernels(sum)) => {
                let work = dense_work(dense);
                residual.kernel_block(frame, output, threads, move |x, threads| {
                    let sum = sum.lock().unwrap_or_else(PoisonError::into_inner).take();
                    sum_products(work(x, threads), sum).expect("the block is not empty")
                })
            }
            (Compute::Stock, ShortcutSum::Stock(sum)) => residual.stock_block(frame, output, |x| {
                let dense = Some(dense.stock(x));
                stock_sum_products(dense, sum).expect("the block is not empty")
            }),
            _ => panic!("both halves of a layer are computed in the same way"),
        }
    }

    /// Returns this rank's part of the inner dimension of a dense block.
    pub(crate) fn inner(&self) -> &Cut {
        &self.dense[0].inner
    }

    /// Returns what a dense block, with or without the experts, adds to the stream. A rank takes part
    /// in both or in neither.
    fn output<'a>(&'a self, dense: &'a Mlp) -> BlockOutput<'a> {
        let output = dense.block_output();
        let is_empty = output.is_empty && self.experts.block_output().is_empty;
        BlockOutput { is_empty, ..output }
    }
}

/// Returns what computes this rank's part of a dense block, `None` if it has none.
fn dense_work(dense: &Mlp) -> impl Fn(Elements<'_>, &Threads) -> Option<Vec<f64>> + use<> {
    let kernel = (!dense.block_output().is_empty).then(|| dense.kernel());
    move |x, threads| kernel.as_ref().map(|kernel| kernel.product(x, threads))
}
