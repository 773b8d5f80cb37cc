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

/// Returns floats as they lie in memory, rounded to their type.
///
/// # Panics
/// Panics if the type is none of floats.
pub(super) fn bytes_of_floats(
    element_type: &ElementType,
    values: impl Iterator<Item = f32>,
) -> Vec<u8> {
    match element_type {
        ElementType::F32 => values.flat_map(f32::to_le_bytes).collect(),
        ElementType::F16 => values.flat_map(|it| f16::from_f32(it).to_le_bytes()).collect(),
        ElementType::Bf16 => values.flat_map(|it| bf16::from_f32(it).to_le_bytes()).collect(),
        other => panic!("the description expects floats, found {other:?}"),
    }
}

/// Calls `fill` for each piece with its offset in the tensor, in bytes.
pub(super) fn for_each_piece(
    pieces: Pieces,
    target: &mut [u8],
    mut fill: impl FnMut(usize, &mut [u8]),
) {
    let mut offset = pieces.offset;
    for piece in target.chunks_mut(pieces.piece_bytes) {
        fill(usize::try_from(offset).expect("a tensor fits into memory"), piece);
        offset += pieces.stride_bytes;
    }
}
