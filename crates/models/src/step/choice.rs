//! The positions that queries of a step attend to, where an indexer chooses them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use jackalope_mlx::Array;

/// The positions that an indexer has chosen in a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// For each row that attends to chosen positions, in order; written when the layer is computed.
    pub(crate) rows: Arc<OnceLock<Vec<Vec<usize>>>>,
    /// Which keys each group of sequences and then each prompt attends to, for MLX; `None` if it
    /// attends to all.
    pub(crate) masks: Rc<RefCell<Vec<Option<Array>>>>,
    /// The candidates that it leaves to later indexers, if it does.
    pub(crate) candidates: Candidates,
}

/// The candidates for the choices of later indexers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// Blocks of pools of each row; written when the layer is computed.
    pub(crate) rows: Arc<OnceLock<Vec<Vec<usize>>>>,
    /// Which pools are candidates of each group of sequences and then of each prompt, for MLX; `None` if
    /// all are.
    pub(crate) masks: Rc<RefCell<Vec<Option<Array>>>>,
}
