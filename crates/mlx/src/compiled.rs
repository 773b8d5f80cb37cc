//! Functions of arrays whose graphs MLX prepares.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::resume_unwind;

use cxx::{CxxVector, UniquePtr};

use crate::array::{Array, refs, unpacked};
use crate::counters;
use crate::ffi::bridge::{self, GraphCopy, RawArray};
use crate::ffi::builder::GraphBuilder;

/// Number of rows up to which graphs are kept. Steps with more rows are those of prompts, whose numbers of rows
/// are many, and whose computation takes far longer than the building of their graphs.
const ROWS_MAX: i32 = 64;

/// A function of arrays whose graph is built once for each number of rows, and copied from then on. A copy takes
/// a fraction of the time, and on GPUs MLX fuses its chains of element-wise operations
/// (`mlx::core::compile`).
#[derive(Default)]
pub struct CompiledFunction {
    /// The graph for each number of rows.
    graphs: RefCell<HashMap<i32, Graph>>,
}

struct Graph {
    copy: UniquePtr<GraphCopy>,
    /// Number of operations that were built.
    num_nodes: u64,
}

impl fmt::Debug for CompiledFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<i32> = self.graphs.borrow().keys().copied().collect();
        f.debug_struct("CompiledFunction").field("rows", &rows).finish()
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
        // The nodes of a copy are not those whose inputs are noted while nodes are counted.
        if ROWS_MAX < num_rows || bridge::is_counting() {
            return build(&inputs.iter().map(|it| (*it).clone()).collect::<Vec<_>>());
        }
        let mut graphs = self.graphs.borrow_mut();
        if let Some(graph) = graphs.get(&num_rows) {
            counters::count(|it| it.nodes += graph.num_nodes);
            return unpacked(&bridge::apply(&graph.copy, &refs(inputs)));
        }
        let before = counters::host_counters().nodes;
        let outputs = compiled(inputs, &build);
        let num_nodes = counters::host_counters().nodes - before;
        let copy = bridge::graph_copy(&refs(inputs), &outputs);
        let copy = copy.unwrap_or_else(|err| panic!("copy of a graph: {err}"));
        graphs.insert(num_rows, Graph { copy, num_nodes });
        unpacked(&outputs)
    }
}

/// Returns `build(inputs)` with the graph that MLX makes of it.
#[track_caller]
fn compiled(
    inputs: &[&Array],
    build: &dyn Fn(&[Array]) -> Vec<Array>,
) -> UniquePtr<CxxVector<RawArray>> {
    let mut build = |inputs: &CxxVector<RawArray>| {
        let outputs = build(&unpacked(inputs));
        bridge::together(&refs(&outputs.iter().collect::<Vec<_>>()))
    };
    let mut builder = GraphBuilder::new(&mut build);
    // SAFETY: MLX keeps no reference to the builder after the call.
    let outputs = unsafe { bridge::compiled(&refs(inputs), &mut builder) };
    if let Some(panic) = builder.into_panic() {
        resume_unwind(panic);
    }
    outputs.unwrap_or_else(|err| panic!("compile: {err}"))
}
