//! Sums the ranks' buffers, always in rank order.
//!
//! Floating-point addition is not associative, so the order is part of the result: `((x0 + x1) +
//! x2) + …`, element by element, on every rank. f16 and bf16 are widened to f32, added
//! there and rounded once (to nearest, ties to even); integers wrap.

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::dtype::Dtype;
use crate::packed;

/// Number of elements added at a time: their f32 accumulators stay in the first-level cache.
const BLOCK: usize = 1024;

/// Replaces `own` by the sum over all ranks.
///
/// `own` is the buffer of rank `own_rank`; `others` are the other ranks' buffers by rank, all as
/// long as `own`.
pub(crate) fn sum_in_rank_order(own: &mut [u8], own_rank: usize, others: &[&[u8]], dtype: Dtype) {
    debug_assert!(others.iter().all(|other| other.len() == own.len()), "ranks differ in length");
    match (dtype, others) {
        (Dtype::F32, [other]) => add_pair(own, own_rank, other, |a, b| {
            (f32::from_le_bytes(a) + f32::from_le_bytes(b)).to_le_bytes()
        }),
        (Dtype::I32 | Dtype::U32, [other]) => add_pair(own, own_rank, other, |a, b| {
            u32::from_le_bytes(a).wrapping_add(u32::from_le_bytes(b)).to_le_bytes()
        }),
        (Dtype::F64, [other]) => add_pair(own, own_rank, other, |a, b| {
            (f64::from_le_bytes(a) + f64::from_le_bytes(b)).to_le_bytes()
        }),
        (Dtype::F32, _) => sum_blocks::<F32>(own, own_rank, others),
        (Dtype::F64, _) => sum_blocks::<F64>(own, own_rank, others),
        (Dtype::Packed, [other]) if own_rank == 0 => packed::add_pair(own, other, |a, b| a + b),
        (Dtype::Packed, [other]) => packed::add_pair(own, other, |b, a| a + b),
        (Dtype::Packed, _) => sum_blocks::<Packed>(own, own_rank, others),
        (Dtype::F16, _) => sum_blocks::<F16>(own, own_rank, others),
        (Dtype::Bf16, _) => sum_blocks::<Bf16>(own, own_rank, others),
        // Two's complement: signed and unsigned wrap to the same bits.
        (Dtype::I32 | Dtype::U32, _) => sum_blocks::<U32>(own, own_rank, others),
    }
}

/// Sums the buffers of two ranks in one pass, without accumulators.
fn add_pair<const BYTES: usize>(
    own: &mut [u8],
    own_rank: usize,
    other: &[u8],
    add: impl Fn([u8; BYTES], [u8; BYTES]) -> [u8; BYTES],
) {
    let (own, _) = own.as_chunks_mut::<BYTES>();
    let (other, _) = other.as_chunks::<BYTES>();
    if own_rank == 0 {
        for (a, b) in own.iter_mut().zip(other) {
            *a = add(*a, *b);
        }
    } else {
        for (b, a) in own.iter_mut().zip(other) {
            *b = add(*a, *b);
        }
    }
}

/// Widening, adding and narrowing of elements of one type; `bytes` hold `acc.len()` elements.
trait Element {
    const SIZE_BYTES: usize;
    type Acc: Copy + Default;
    fn load(acc: &mut [Self::Acc], bytes: &[u8]);
    fn add(acc: &mut [Self::Acc], bytes: &[u8]);
    fn store(acc: &[Self::Acc], bytes: &mut [u8]);
}

fn sum_blocks<E: Element>(own: &mut [u8], own_rank: usize, others: &[&[u8]]) {
    let mut acc = [E::Acc::default(); BLOCK];
    let mut start = 0;
    for own in own.chunks_mut(BLOCK * E::SIZE_BYTES) {
        let range = start..start + own.len();
        let acc = &mut acc[..own.len() / E::SIZE_BYTES];
        for rank in 0..=others.len() {
            let part = match rank.cmp(&own_rank) {
                std::cmp::Ordering::Less => &others[rank][range.clone()],
                std::cmp::Ordering::Equal => &*own,
                std::cmp::Ordering::Greater => &others[rank - 1][range.clone()],
            };
            if rank == 0 { E::load(acc, part) } else { E::add(acc, part) }
        }
        E::store(acc, own);
        start = range.end;
    }
}

struct F32;

impl Element for F32 {
    const SIZE_BYTES: usize = 4;
    type Acc = f32;

    fn load(acc: &mut [f32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *a = f32::from_le_bytes(*b);
        }
    }

    fn add(acc: &mut [f32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *a += f32::from_le_bytes(*b);
        }
    }

    fn store(acc: &[f32], bytes: &mut [u8]) {
        for (a, b) in acc.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *b = a.to_le_bytes();
        }
    }
}

struct F64;

impl Element for F64 {
    const SIZE_BYTES: usize = 8;
    type Acc = f64;

    fn load(acc: &mut [f64], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *a = f64::from_le_bytes(*b);
        }
    }

    fn add(acc: &mut [f64], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *a += f64::from_le_bytes(*b);
        }
    }

    fn store(acc: &[f64], bytes: &mut [u8]) {
        for (a, b) in acc.iter().zip(bytes.as_chunks_mut::<8>().0) {
            *b = a.to_le_bytes();
        }
    }
}

struct Packed;

impl Element for Packed {
    const SIZE_BYTES: usize = packed::BYTES;
    type Acc = f64;

    fn load(acc: &mut [f64], bytes: &[u8]) {
        packed::decode_into(bytes, acc, |a, b| *a = b);
    }

    fn add(acc: &mut [f64], bytes: &[u8]) {
        packed::decode_into(bytes, acc, |a, b| *a += b);
    }

    fn store(acc: &[f64], bytes: &mut [u8]) {
        packed::encode_into(acc, bytes, |a| *a);
    }
}

struct U32;

impl Element for U32 {
    const SIZE_BYTES: usize = 4;
    type Acc = u32;

    fn load(acc: &mut [u32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *a = u32::from_le_bytes(*b);
        }
    }

    fn add(acc: &mut [u32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *a = a.wrapping_add(u32::from_le_bytes(*b));
        }
    }

    fn store(acc: &[u32], bytes: &mut [u8]) {
        for (a, b) in acc.iter().zip(bytes.as_chunks_mut::<4>().0) {
            *b = a.to_le_bytes();
        }
    }
}

struct Bf16;

impl Element for Bf16 {
    const SIZE_BYTES: usize = 2;
    type Acc = f32;

    fn load(acc: &mut [f32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *a = widen_bf16(*b);
        }
    }

    fn add(acc: &mut [f32], bytes: &[u8]) {
        for (a, b) in acc.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *a += widen_bf16(*b);
        }
    }

    fn store(acc: &[f32], bytes: &mut [u8]) {
        for (a, b) in acc.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *b = narrow_bf16(*a);
        }
    }
}

fn widen_bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Rounds to nearest, ties to even, without a branch so that loops vectorise.
fn narrow_bf16(value: f32) -> [u8; 2] {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    // Rounding could turn a NaN into an infinity; setting the quiet bit keeps it a NaN.
    let quiet_nan = (bits >> 16) | 0x40;
    let is_nan = bits & 0x7FFF_FFFF > 0x7F80_0000;
    (if is_nan { quiet_nan } else { rounded } as u16).to_le_bytes()
}

struct F16;

impl F16 {
    fn read(into: &mut [f16], bytes: &[u8]) {
        for (a, b) in into.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *a = f16::from_le_bytes(*b);
        }
    }
}

impl Element for F16 {
    const SIZE_BYTES: usize = 2;
    type Acc = f32;

    fn load(acc: &mut [f32], bytes: &[u8]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        F16::read(halves, bytes);
        halves.convert_to_f32_slice(acc);
    }

    fn add(acc: &mut [f32], bytes: &[u8]) {
        let mut wide = [0.0; BLOCK];
        let wide = &mut wide[..acc.len()];
        F16::load(wide, bytes);
        for (a, b) in acc.iter_mut().zip(wide) {
            *a += *b;
        }
    }

    fn store(acc: &[f32], bytes: &mut [u8]) {
        let mut halves = [f16::ZERO; BLOCK];
        let halves = &mut halves[..acc.len()];
        halves.convert_from_f32_slice(acc);
        for (a, b) in halves.iter().zip(bytes.as_chunks_mut::<2>().0) {
            *b = a.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Returns bytes that contain every kind of number: normal, tiny, huge, infinite, NaN.
    fn noise(bytes: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        (0..bytes)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 24) as u8
            })
            .collect()
    }

    /// Returns the sum of one element over all ranks, computed in the plainest way.
    fn reference(parts: &[&[u8]], dtype: Dtype) -> Vec<u8> {
        let four = |part: &[u8]| <[u8; 4]>::try_from(part).unwrap();
        let two = |part: &[u8]| <[u8; 2]>::try_from(part).unwrap();
        let eight = |part: &[u8]| f64::from_le_bytes(part.try_into().unwrap());
        match dtype {
            Dtype::Packed => {
                let six = |part: &[u8]| packed::decode(part.try_into().unwrap());
                let sum = parts[1..].iter().fold(six(parts[0]), |sum, p| sum + six(p));
                packed::encode(sum).to_vec()
            }
            Dtype::F64 => {
                let sum = parts[1..].iter().fold(eight(parts[0]), |sum, p| sum + eight(p));
                sum.to_le_bytes().to_vec()
            }
            Dtype::F32 => parts[1..]
                .iter()
                .fold(f32::from_le_bytes(four(parts[0])), |sum, p| {
                    sum + f32::from_le_bytes(four(p))
                })
                .to_le_bytes()
                .to_vec(),
            Dtype::I32 | Dtype::U32 => parts
                .iter()
                .fold(0, |sum: u32, p| sum.wrapping_add(u32::from_le_bytes(four(p))))
                .to_le_bytes()
                .to_vec(),
            Dtype::F16 => f16::from_f32(
                parts[1..].iter().fold(f16::from_le_bytes(two(parts[0])).to_f32(), |sum, p| {
                    sum + f16::from_le_bytes(two(p)).to_f32()
                }),
            )
            .to_le_bytes()
            .to_vec(),
            Dtype::Bf16 => bf16::from_f32(
                parts[1..].iter().fold(bf16::from_le_bytes(two(parts[0])).to_f32(), |sum, p| {
                    sum + bf16::from_le_bytes(two(p)).to_f32()
                }),
            )
            .to_le_bytes()
            .to_vec(),
        }
    }

    fn is_nan(bytes: &[u8], dtype: Dtype) -> bool {
        match dtype {
            Dtype::F32 => f32::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            Dtype::F16 => f16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            Dtype::Bf16 => bf16::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            Dtype::F64 => f64::from_le_bytes(bytes.try_into().unwrap()).is_nan(),
            Dtype::Packed => packed::decode(bytes.try_into().unwrap()).is_nan(),
            Dtype::I32 | Dtype::U32 => false,
        }
    }

    #[test]
    fn every_type_and_length_sums_as_the_plain_loop_does() {
        for dtype in Dtype::ALL {
            let size = dtype.size_bytes();
            for ranks in 2..=5 {
                for elements in [0, 1, 3, 7, 8, 33, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5] {
                    let parts: Vec<Vec<u8>> =
                        (0..ranks).map(|r| noise(elements * size, r as u64 + 1)).collect();
                    check(&parts, dtype);
                }
            }
        }
    }

    fn check(parts: &[Vec<u8>], dtype: Dtype) {
        let size = dtype.size_bytes();
        for own_rank in 0..parts.len() {
            let others: Vec<&[u8]> = (0..parts.len())
                .filter(|rank| *rank != own_rank)
                .map(|rank| parts[rank].as_slice())
                .collect();
            let mut own = parts[own_rank].clone();
            sum_in_rank_order(&mut own, own_rank, &others, dtype);
            for (idx, found) in own.chunks(size).enumerate() {
                let column: Vec<&[u8]> =
                    parts.iter().map(|p| &p[idx * size..(idx + 1) * size]).collect();
                let expected = reference(&column, dtype);
                let both_nan = is_nan(found, dtype) && is_nan(&expected, dtype);
                assert!(
                    found == expected || both_nan,
                    "{dtype} element {idx} of {} on rank {own_rank} of {}: {found:02x?} is not \
                     {expected:02x?}",
                    own.len() / size,
                    parts.len()
                );
            }
        }
    }

    #[test]
    fn every_bf16_survives_widening_and_narrowing() {
        for bits in 0..=u16::MAX {
            let narrow = narrow_bf16(widen_bf16(bits.to_le_bytes()));
            let value = bf16::from_bits(bits);
            if value.is_nan() {
                assert!(bf16::from_le_bytes(narrow).is_nan());
            } else {
                assert_eq!(narrow, bits.to_le_bytes());
            }
        }
    }

    #[test]
    fn the_order_of_ranks_shows_in_the_result() {
        // 2^24 + 1 + 1 rounds to 2^24 from the left and to 2^24 + 2 from the right.
        let big = 16_777_216f32.to_le_bytes();
        let one = 1f32.to_le_bytes();
        let mut first = big;
        sum_in_rank_order(&mut first, 0, &[&one, &one], Dtype::F32);
        assert_eq!(f32::from_le_bytes(first), 16_777_216.0);
        let mut last = big;
        sum_in_rank_order(&mut last, 2, &[&one, &one], Dtype::F32);
        assert_eq!(f32::from_le_bytes(last), 16_777_218.0);
    }
}
