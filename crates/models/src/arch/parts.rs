//! What a layer is made from.

use jackalope_spec::{LayerLayout, LayerSpec, ModelSpec};

use crate::error::LoadError;
use crate::layers::{RmsNorm, Ropes};
use crate::parallel::Parallel;
use crate::weights::Weights;

/// What a layer is made from.
#[derive(Clone, Copy)]
pub(super) struct LayerParts<'a, 'w> {
    pub(super) layer_idx: usize,
    pub(super) spec: &'a LayerSpec,
    pub(super) layout: &'a LayerLayout,
    pub(super) model: &'a ModelSpec,
    pub(super) ropes: &'a Ropes,
    /// The root of all tensors' names.
    pub(super) root: &'a Weights<'w>,
    pub(super) parallel: &'a Parallel,
}

impl LayerParts<'_, '_> {
    /// Loads the norm at `w`, of vectors of `width` elements.
    pub(super) fn norm(&self, w: &Weights<'_>, width: usize) -> Result<RmsNorm, LoadError> {
        RmsNorm::load(w, width, self.model.norm_eps, self.parallel)
    }
}
