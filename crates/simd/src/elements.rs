//! Views of floating-point buffers whose element type is known only at run time, and their conversion to and from
//! f32, in which every kernel computes.

use std::ops::Range;

use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

/// An element type of activations, weights or scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

/// A borrowed buffer of floats.
#[derive(Clone, Copy, Debug)]
pub enum Elements<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

/// A mutably borrowed buffer of floats.
#[derive(Debug)]
pub enum ElementsMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Half precision.
    F16(&'a mut [f16]),
    /// bfloat16.
    Bf16(&'a mut [bf16]),
}

impl<'a> Elements<'a> {
    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Elements::F32(values) => values.len(),
            Elements::F16(values) => values.len(),
            Elements::Bf16(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size of the elements in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        match self {
            Elements::F32(values) => size_of_val(*values),
            Elements::F16(values) => size_of_val(*values),
            Elements::Bf16(values) => size_of_val(*values),
        }
    }

    /// The element type.
    #[inline]
    pub fn float(&self) -> Float {
        match self {
            Elements::F32(_) => Float::F32,
            Elements::F16(_) => Float::F16,
            Elements::Bf16(_) => Float::Bf16,
        }
    }

    /// Returns the elements of a range.
    #[inline]
    pub fn part(&self, range: Range<usize>) -> Self {
        match self {
            Elements::F32(values) => Elements::F32(&values[range]),
            Elements::F16(values) => Elements::F16(&values[range]),
            Elements::Bf16(values) => Elements::Bf16(&values[range]),
        }
    }

    /// Converts all elements; exact.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.len()];
        self.load(0, &mut out);
        out
    }

    /// Converts `out.len()` elements from `start` on; exact.
    #[inline(always)]
    pub fn load(&self, start: usize, out: &mut [f32]) {
        let end = start + out.len();
        match self {
            Elements::F32(values) => out.copy_from_slice(&values[start..end]),
            Elements::F16(values) => values[start..end].convert_to_f32_slice(out),
            Elements::Bf16(values) => {
                for (out, value) in out.iter_mut().zip(&values[start..end]) {
                    *out = f32::from_bits(u32::from(value.to_bits()) << 16);
                }
            }
        }
    }
}

impl<'a> ElementsMut<'a> {
    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            ElementsMut::F32(values) => values.len(),
            ElementsMut::F16(values) => values.len(),
            ElementsMut::Bf16(values) => values.len(),
        }
    }

    /// Whether there is no element.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    #[inline]
    pub fn float(&self) -> Float {
        match self {
            ElementsMut::F32(_) => Float::F32,
            ElementsMut::F16(_) => Float::F16,
            ElementsMut::Bf16(_) => Float::Bf16,
        }
    }

    /// Returns a read-only view of the same elements.
    #[inline]
    pub fn as_elements(&self) -> Elements<'_> {
        match self {
            ElementsMut::F32(values) => Elements::F32(values),
            ElementsMut::F16(values) => Elements::F16(values),
            ElementsMut::Bf16(values) => Elements::Bf16(values),
        }
    }

    /// Returns the same view with a shorter lifetime.
    #[inline]
    pub fn reborrow(&mut self) -> ElementsMut<'_> {
        match self {
            ElementsMut::F32(values) => ElementsMut::F32(values),
            ElementsMut::F16(values) => ElementsMut::F16(values),
            ElementsMut::Bf16(values) => ElementsMut::Bf16(values),
        }
    }

    /// Splits the view into the first `mid` elements and the rest.
    #[inline]
    pub fn split_at(self, mid: usize) -> (ElementsMut<'a>, ElementsMut<'a>) {
        match self {
            ElementsMut::F32(values) => {
                let (head, tail) = values.split_at_mut(mid);
                (ElementsMut::F32(head), ElementsMut::F32(tail))
            }
            ElementsMut::F16(values) => {
                let (head, tail) = values.split_at_mut(mid);
                (ElementsMut::F16(head), ElementsMut::F16(tail))
            }
            ElementsMut::Bf16(values) => {
                let (head, tail) = values.split_at_mut(mid);
                (ElementsMut::Bf16(head), ElementsMut::Bf16(tail))
            }
        }
    }

    /// Cuts the view into pieces of `len` elements; the last one may be shorter.
    ///
    /// # Panics
    /// Panics if `len` is 0.
    pub fn chunks(self, len: usize) -> Vec<ElementsMut<'a>> {
        assert!(len > 0, "chunks need at least one element");
        let mut pieces = Vec::with_capacity(self.len().div_ceil(len));
        let mut rest = self;
        while rest.len() > len {
            let (head, tail) = rest.split_at(len);
            pieces.push(head);
            rest = tail;
        }
        if !rest.is_empty() {
            pieces.push(rest);
        }
        pieces
    }

    /// Rounds `values` once, to nearest even, into the elements from `start` on.
    #[inline(always)]
    pub fn store(&mut self, start: usize, values: &[f32]) {
        let end = start + values.len();
        match self {
            ElementsMut::F32(out) => out[start..end].copy_from_slice(values),
            ElementsMut::F16(out) => out[start..end].convert_from_f32_slice(values),
            ElementsMut::Bf16(out) => {
                for (out, value) in out[start..end].iter_mut().zip(values) {
                    *out = round_to_bf16(*value);
                }
            }
        }
    }

    /// Copies elements of the same type.
    ///
    /// # Panics
    /// If types or lengths differ.
    #[track_caller]
    pub fn copy_from(&mut self, from: Elements<'_>) {
        match (self, from) {
            (ElementsMut::F32(out), Elements::F32(from)) => out.copy_from_slice(from),
            (ElementsMut::F16(out), Elements::F16(from)) => out.copy_from_slice(from),
            (ElementsMut::Bf16(out), Elements::Bf16(from)) => out.copy_from_slice(from),
            (out, from) => panic!("{:?} elements for {:?} ones", from.float(), out.float()),
        }
    }

    /// Sets every element to zero.
    pub fn fill_zero(&mut self) {
        match self {
            ElementsMut::F32(out) => out.fill(0.0),
            ElementsMut::F16(out) => out.fill(f16::ZERO),
            ElementsMut::Bf16(out) => out.fill(bf16::ZERO),
        }
    }
}

/// Like [`bf16::from_f32`], in a form that the compiler vectorises.
#[inline(always)]
fn round_to_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    // Adds half a unit minus one bit, or half a unit if that makes an odd number even.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let bits = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
    bf16::from_bits((bits >> 16) as u16)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::round_to_bf16;

    #[test]
    fn rounding_to_bf16_is_that_of_the_type() {
        let edges = [0, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=u32::from(u16::MAX)).flat_map(|high| edges.map(|low| high << 16 | low)) {
            let value = f32::from_bits(bits);
            assert_eq!(round_to_bf16(value).to_bits(), bf16::from_f32(value).to_bits(), "{value}");
        }
    }
}
