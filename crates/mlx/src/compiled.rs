//! Functions of arrays whose graphs MLX prepares.

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;

use cxx::{CxxVector, UniquePtr};

use crate::array::{Array, refs, unpacked};
use crate::counters;
use crate::ffi::bridge::{self, GraphFunction, RawArray};
use crate::ffi::builder::GraphBuilder;

/// Number of rows up to which graphs are kept. Steps with more rows are those of prompts, whose numbers of rows
/// are many, and whose computation takes far longer than the building of their graphs.
const ROWS_MAX: i32 = 64;

/// A function of arrays whose graph MLX builds once for each number of rows, and copies from then on. A copy
/// takes a fraction of the time, and on GPUs MLX joins element-wise operations of such a graph in one kernel
/// each (`mlx::core::compile`).
///
/// It belongs to the thread that calls it, as arrays do.
#[derive(Default)]
pub struct CompiledFunction {
    /// Created when it is first called.
    function: OnceCell<RefCell<UniquePtr<GraphFunction>>>,
    /// Number of operations of the graph for each number of rows.
    nodes: RefCell<HashMap<i32, u64>>,
}

impl fmt::Debug for CompiledFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledFunction").field("nodes", &self.nodes).finish_non_exhaustive()
    }
}

impl CompiledFunction {
    /// Returns `build(inputs)`.
    ///
    /// `build` must be the same function in every call. What it reads besides `inputs` must never change, because
    /// graphs contain what was read in the first call: weights and settings, but nothing that belongs to a step.
    /// The first dimension of the first input is the number of rows; other dimensions and the number of inputs
    /// are always the same.
    ///
    /// # Panics
    /// Panics where `build` does, and if there are no inputs.
    #[track_caller]
    pub fn call(&self, inputs: &[&Array], build: impl Fn(&[Array]) -> Vec<Array>) -> Vec<Array> {
        let num_rows = inputs[0].dim(0);
        if ROWS_MAX < num_rows {
            return build(&inputs.iter().map(|it| (*it).clone()).collect::<Vec<_>>());
        }
        let mut built_nodes = None;
        let mut build = |inputs: &CxxVector<RawArray>| {
            let before = counters::host_counters().nodes;
            let outputs = build(&unpacked(inputs));
            built_nodes = Some(counters::host_counters().nodes - before);
            bridge::together(&refs(&outputs.iter().collect::<Vec<_>>()))
        };
        let mut builder = GraphBuilder::new(&mut build);
        let function = self.function.get_or_init(|| {
            RefCell::new(bridge::graph_function().unwrap_or_else(|err| panic!("compile: {err}")))
        });
        // SAFETY: the function keeps no reference to the builder after the call.
        let called =
            unsafe { bridge::call(function.borrow_mut().pin_mut(), &refs(inputs), &mut builder) };
        if let Some(panic) = builder.into_panic() {
            resume_unwind(panic);
        }
        match built_nodes {
            Some(num_nodes) => {
                self.nodes.borrow_mut().insert(num_rows, num_nodes);
            }
            None => {
                let num_nodes = self.nodes.borrow().get(&num_rows).copied().unwrap_or_default();
                counters::count(|it| it.nodes += num_nodes);
            }
        }
        unpacked(&called.unwrap_or_else(|err| panic!("compile: {err}")))
    }
}
