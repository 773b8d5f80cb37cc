//! What builds the graph of a function for MLX.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cxx::{CxxVector, UniquePtr};

use super::bridge::RawArray;

/// Returns the outputs of a function for its inputs.
type Build<'a> = &'a mut dyn FnMut(&CxxVector<RawArray>) -> UniquePtr<CxxVector<RawArray>>;

/// Builds the graph of a function, and keeps a panic for the caller, so that nothing unwinds into C++.
pub(crate) struct GraphBuilder<'a> {
    build: Build<'a>,
    panic: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for GraphBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphBuilder").field("panic", &self.panic).finish_non_exhaustive()
    }
}

impl<'a> GraphBuilder<'a> {
    pub(crate) fn new(build: Build<'a>) -> GraphBuilder<'a> {
        GraphBuilder { build, panic: None }
    }

    /// Returns the panic that ended the building.
    pub(crate) fn into_panic(self) -> Option<Box<dyn Any + Send>> {
        self.panic
    }

    /// Builds the graph.
    pub(super) fn build(
        &mut self,
        inputs: &CxxVector<RawArray>,
    ) -> Result<UniquePtr<CxxVector<RawArray>>, String> {
        catch_unwind(AssertUnwindSafe(|| (self.build)(inputs))).map_err(|panic| {
            self.panic = Some(panic);
            "building the graph panicked".to_owned()
        })
    }
}
