//! Stored tensors from which others are computed.

use half::{bf16, f16};
use jackalope_spec::ElementType;

use super::files::Pieces;
use crate::error::LoadError;

/// A stored tensor.
pub(super) trait StoredBytes: Sync {
    /// Type of its elements.
    fn element_type(&self) -> &ElementType;

    /// Its length in bytes.
    fn num_bytes(&self) -> u64;

    /// Fills `target` with pieces of it.
    fn read(&self, pieces: Pieces, target: &mut [u8]) -> Result<(), LoadError>;
}

/// Returns all bytes of a tensor.
pub(super) fn all_bytes(stored: &impl StoredBytes) -> Result<Vec<u8>, LoadError> {
    let num_bytes = usize::try_from(stored.num_bytes()).expect("a tensor fits into memory");
    let mut bytes = vec![0; num_bytes];
    stored.read(Pieces::run(0, num_bytes), &mut bytes)?;
    Ok(bytes)
}

/// Returns the values of floats in memory.
///
/// # Panics
/// Panics if the elements are no floats.
pub(super) fn floats(element_type: &ElementType, bytes: &[u8]) -> Vec<f32> {
    let half = |pair: &[u8]| [pair[0], pair[1]];
    match element_type {
        ElementType::F32 => bytes
            .chunks_exact(4)
            .map(|it| f32::from_le_bytes(it.try_into().expect("four bytes")))
            .collect(),
        ElementType::F16 => {
            bytes.chunks_exact(2).map(|it| f16::from_le_bytes(half(it)).to_f32()).collect()
        }
        ElementType::Bf16 => {
            bytes.chunks_exact(2).map(|it| bf16::from_le_bytes(half(it)).to_f32()).collect()
        }
        other => panic!("the description expects floats, found {other:?}"),
    }
}
