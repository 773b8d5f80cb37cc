//! A wire format of six bytes per element for exact sums: [`Dtype::Packed`](crate::Dtype::Packed).
//!
//! A multiple of 2^-30 with magnitude below 2^17 is stored as an integer of 48 bits, so that the
//! ranks' parts of a sum add up exactly. Any other number is stored as an f32 in the lower 32 bits,
//! with the upper 16 bits set to `0x8000`; the most negative integers, which have these bits, are
//! not used.

/// Size of an element in bytes.
pub(crate) const BYTES: usize = 6;

/// Inverse of the grid's spacing.
const PER_ONE: f64 = (1_u64 << 30) as f64;

/// Bound of the integers: those with a smaller magnitude cannot be confused with [`F32_MARK`].
const LIMIT: f64 = ((1_u64 << 47) - (1 << 33)) as f64;

/// The upper 16 bits of an element that carries an f32.
const F32_MARK: u64 = 0x8000;

/// Adding this to an integer below 2^51 leaves that integer in the low bits of the sum, in two's
/// complement.
const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// Encodes a number as an element.
pub(crate) fn encode(number: f64) -> [u8; BYTES] {
    let scaled = number * PER_ONE;
    let is_whole = scaled.abs() < LIMIT;
    let marked = F32_MARK << 32 | u64::from((number as f32).to_bits());
    let bits = if is_whole { (scaled + WHOLE).to_bits() } else { marked };
    let [a, b, c, d, e, f, _, _] = bits.to_le_bytes();
    [a, b, c, d, e, f]
}

/// Decodes an element.
pub(crate) fn decode([a, b, c, d, e, f]: [u8; BYTES]) -> f64 {
    let bits = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
    if bits >> 32 == F32_MARK {
        return f64::from(f32::from_bits(bits as u32));
    }
    ((bits << 16).cast_signed() >> 16) as f64 / PER_ONE
}

/// Encodes f64 numbers, given as their bytes. Numbers that are not multiples of 2^-30 are rounded
/// to one, or to an f32 if they are beyond 2^17.
pub fn pack(numbers: &[u8]) -> Vec<u8> {
    let numbers = numbers.as_chunks::<8>().0.iter();
    numbers.flat_map(|number| encode(f64::from_le_bytes(*number))).collect()
}

/// Decodes the elements that [`pack`] returns.
///
/// # Panics
/// If the numbers of elements and f64 values differ.
#[track_caller]
pub fn unpack(elements: &[u8], numbers: &mut [u8]) {
    let elements = elements.as_chunks::<BYTES>().0;
    let numbers = numbers.as_chunks_mut::<8>().0;
    assert_eq!(elements.len(), numbers.len(), "as many elements as numbers");
    for (number, element) in numbers.iter_mut().zip(elements) {
        *number = decode(*element).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(number: f64) -> f64 {
        let mut found = [0; 8];
        unpack(&pack(&number.to_le_bytes()), &mut found);
        f64::from_le_bytes(found)
    }

    #[test]
    fn multiples_of_the_grid_survive_and_others_are_rounded() {
        let unit = 1.0 / PER_ONE;
        let exact = [0.0, unit, 1.0, 0.75 + unit, 4096.0 + 3.0 * unit, 131_063.0 + unit];
        for number in exact.into_iter().flat_map(|number| [number, -number]) {
            assert_eq!(packed(number), number);
        }
        assert_eq!(packed(1.0 + unit / 4.0), 1.0);
        // Numbers beyond the grid are rounded to f32.
        for number in [131_072.0_f64, 1e6 + unit, 3e38, 1e39, f64::INFINITY] {
            assert_eq!(packed(number), f64::from(number as f32));
            assert_eq!(packed(-number), f64::from(-number as f32));
        }
        assert!(packed(f64::NAN).is_nan());
    }
}
