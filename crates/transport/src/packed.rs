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

/// Bits of an element.
const ELEMENT_BITS: u32 = 8 * BYTES as u32;

/// Number of elements that are read and written together: they fill [`GROUP_WORDS`] words of 64 bits, so that no
/// single bytes are moved.
const GROUP: usize = 4;

/// Words of [`GROUP`] elements.
const GROUP_WORDS: usize = 3;

/// Size of [`GROUP`] elements in bytes.
const GROUP_BYTES: usize = GROUP * BYTES;

/// Returns the bits of a number's element; the upper 16 bits are zero.
fn element_bits(number: f64) -> u64 {
    let scaled = number * PER_ONE;
    let is_whole = scaled.abs() < LIMIT;
    let marked = F32_MARK << 32 | u64::from((number as f32).to_bits());
    let bits = if is_whole { (scaled + WHOLE).to_bits() } else { marked };
    bits & ((1 << ELEMENT_BITS) - 1)
}

/// Returns the number whose [`element_bits`] are given.
fn number_of(bits: u64) -> f64 {
    let unused = u64::BITS - ELEMENT_BITS;
    let whole = (bits << unused).cast_signed() >> unused;
    let sum = f64::from_bits(WHOLE.to_bits().wrapping_add_signed(whole));
    let exact = (sum - WHOLE) / PER_ONE;
    let rounded = f64::from(f32::from_bits(bits as u32));
    if bits >> 32 == F32_MARK { rounded } else { exact }
}

/// Encodes a number as an element.
pub(crate) fn encode(number: f64) -> [u8; BYTES] {
    let [a, b, c, d, e, f, _, _] = element_bits(number).to_le_bytes();
    [a, b, c, d, e, f]
}

/// Decodes an element.
pub(crate) fn decode([a, b, c, d, e, f]: [u8; BYTES]) -> f64 {
    number_of(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
}

/// Encodes as many numbers as a group has.
fn encode_group(numbers: [f64; GROUP]) -> [u8; GROUP_BYTES] {
    let [a, b, c, d] = numbers.map(element_bits);
    let words = [a | b << 48, b >> 16 | c << 32, c >> 32 | d << 16];
    let mut bytes = [0; GROUP_BYTES];
    for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

/// Decodes the elements of a group.
fn decode_group(bytes: &[u8; GROUP_BYTES]) -> [f64; GROUP] {
    let mut words = [0; GROUP_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let [x, y, z] = words;
    let low = (1 << ELEMENT_BITS) - 1;
    [x & low, (x >> 48 | y << 16) & low, (y >> 32 | z << 32) & low, z >> 16].map(number_of)
}

/// Calls `visit` with each number of `elements` and its place in `numbers`, which has as many.
pub(crate) fn decode_into<T>(elements: &[u8], numbers: &mut [T], visit: impl Fn(&mut T, f64)) {
    let (groups, rest) = elements.as_chunks::<GROUP_BYTES>();
    let (targets, rest_targets) = numbers.as_chunks_mut::<GROUP>();
    for (targets, group) in targets.iter_mut().zip(groups) {
        for (target, number) in targets.iter_mut().zip(decode_group(group)) {
            visit(target, number);
        }
    }
    for (target, element) in rest_targets.iter_mut().zip(rest.as_chunks().0) {
        visit(target, decode(*element));
    }
}

/// Encodes the numbers that `get` returns for each item of `numbers` into `elements`, which has room for as many.
pub(crate) fn encode_into<T>(numbers: &[T], elements: &mut [u8], get: impl Fn(&T) -> f64) {
    let (groups, rest) = elements.as_chunks_mut::<GROUP_BYTES>();
    let (sources, rest_sources) = numbers.as_chunks::<GROUP>();
    for (group, sources) in groups.iter_mut().zip(sources) {
        *group = encode_group(sources.each_ref().map(&get));
    }
    for (element, source) in rest.as_chunks_mut().0.iter_mut().zip(rest_sources) {
        *element = encode(get(source));
    }
}

/// Replaces each element of `own` by `add(own, other)`, with the numbers that the elements stand for.
pub(crate) fn add_pair(own: &mut [u8], other: &[u8], add: impl Fn(f64, f64) -> f64) {
    let (groups, rest) = own.as_chunks_mut::<GROUP_BYTES>();
    let (others, rest_others) = other.as_chunks::<GROUP_BYTES>();
    for (group, other) in groups.iter_mut().zip(others) {
        let (mut sums, other) = (decode_group(group), decode_group(other));
        for (sum, other) in sums.iter_mut().zip(other) {
            *sum = add(*sum, other);
        }
        *group = encode_group(sums);
    }
    for (element, other) in rest.as_chunks_mut().0.iter_mut().zip(rest_others.as_chunks().0) {
        *element = encode(add(decode(*element), decode(*other)));
    }
}

/// Encodes f64 numbers, given as their bytes, into `elements`, whose memory is used again. Numbers that are not
/// multiples of 2^-30 are rounded to one, or to an f32 if they are beyond 2^17.
pub fn pack(numbers: &[u8], elements: &mut Vec<u8>) {
    let numbers = numbers.as_chunks::<8>().0;
    elements.resize(numbers.len() * BYTES, 0);
    encode_into(numbers, elements, |number| f64::from_le_bytes(*number));
}

/// Decodes the elements that [`pack`] returns.
///
/// # Panics
/// If the numbers of elements and f64 values differ.
#[track_caller]
pub fn unpack(elements: &[u8], numbers: &mut [u8]) {
    let numbers = numbers.as_chunks_mut::<8>().0;
    assert_eq!(elements.len(), numbers.len() * BYTES, "as many elements as numbers");
    decode_into(elements, numbers, |target, number| *target = number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(numbers: &[f64]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// Returns what is left of numbers that are packed together.
    fn packed_all(numbers: &[f64]) -> Vec<f64> {
        // What the buffer held before makes no difference.
        let mut elements = vec![0xff; 100];
        pack(&bytes(numbers), &mut elements);
        let mut found = vec![0; numbers.len() * 8];
        unpack(&elements, &mut found);
        found.as_chunks().0.iter().map(|number| f64::from_le_bytes(*number)).collect()
    }

    fn packed(number: f64) -> f64 {
        packed_all(&[number])[0]
    }

    /// Numbers of every kind: on the grid, between its points, beyond it, infinite and not a number.
    fn mixed(len: usize) -> Vec<f64> {
        let unit = 1.0 / PER_ONE;
        let kinds =
            [0.0, -0.0, unit, -unit, 1.5, -2.25 + unit, 0.3, 131_063.0, -131_064.0, 3e38, -1e9];
        let kinds = kinds.into_iter().chain([1e39, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]);
        kinds.cycle().take(len).collect()
    }

    #[test]
    fn groups_hold_the_bytes_of_single_elements() {
        for len in 0..40 {
            let numbers = mixed(len);
            let mut elements = Vec::new();
            pack(&bytes(&numbers), &mut elements);
            let single = numbers.iter().flat_map(|number| encode(*number));
            assert_eq!(elements, single.collect::<Vec<_>>());
            for (found, number) in packed_all(&numbers).into_iter().zip(numbers) {
                assert_eq!(found.to_bits(), decode(encode(number)).to_bits(), "{number}");
            }
        }
    }

    #[test]
    fn pairs_are_added_as_numbers() {
        for len in 0..20 {
            let (own, other) = (mixed(len), mixed(2 * len).split_off(len));
            let [mut own_elements, mut other_elements] = [Vec::new(), Vec::new()];
            pack(&bytes(&own), &mut own_elements);
            pack(&bytes(&other), &mut other_elements);
            // Not commutative, so that the order shows.
            let add = |a: f64, b: f64| a - b;
            let numbers = own
                .iter()
                .zip(&other)
                .flat_map(|(a, b)| encode(add(decode(encode(*a)), decode(encode(*b)))));
            let expected: Vec<u8> = numbers.collect();
            add_pair(&mut own_elements, &other_elements, add);
            assert_eq!(own_elements, expected);
        }
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
