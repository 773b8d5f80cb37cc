//! The element types that a group can sum.

use std::fmt;

use half::{bf16, f16};

use crate::packed;

/// Element type of a message. Bytes are little endian on the wire and in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 1,
    /// IEEE 754 binary16; sums accumulate in f32 and round once.
    F16 = 2,
    /// bfloat16; sums accumulate in f32 and round once.
    Bf16 = 3,
    /// Signed 32-bit integer; sums wrap.
    I32 = 4,
    /// Unsigned 32-bit integer; sums wrap.
    U32 = 5,
    /// IEEE 754 binary64.
    F64 = 6,
    /// Six bytes that hold a multiple of 2^-30 with magnitude below 2^17, whose sums are exact, or
    /// an f32; see [`crate::pack`].
    Packed = 7,
}

impl Dtype {
    /// Every element type.
    pub const ALL: [Dtype; 7] =
        [Dtype::F32, Dtype::F16, Dtype::Bf16, Dtype::I32, Dtype::U32, Dtype::F64, Dtype::Packed];

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F64 => 8,
            Dtype::Packed => packed::BYTES,
        }
    }

    /// Returns the usual name: `f32`, `bf16`, …
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::I32 => "i32",
            Dtype::U32 => "u32",
            Dtype::F64 => "f64",
            Dtype::Packed => "packed",
        }
    }

    /// Converts numbers to elements of this type. Floats are rounded to nearest, integers towards
    /// zero.
    pub fn encode(self, numbers: &[f32]) -> Vec<u8> {
        match self {
            Dtype::F32 => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::F16 => numbers.iter().flat_map(|x| f16::from_f32(*x).to_le_bytes()).collect(),
            Dtype::Bf16 => numbers.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()).collect(),
            Dtype::I32 => numbers.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
            Dtype::U32 => numbers.iter().flat_map(|x| (*x as u32).to_le_bytes()).collect(),
            Dtype::F64 => numbers.iter().flat_map(|x| f64::from(*x).to_le_bytes()).collect(),
            Dtype::Packed => numbers.iter().flat_map(|x| packed::encode(f64::from(*x))).collect(),
        }
    }

    /// Converts elements of this type to f32; large integers and f64 are rounded.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let (twos, fours) = (bytes.as_chunks::<2>().0.iter(), bytes.as_chunks::<4>().0.iter());
        let eights = bytes.as_chunks::<8>().0.iter();
        let sixes = bytes.as_chunks::<6>().0.iter();
        match self {
            Dtype::F32 => fours.map(|x| f32::from_le_bytes(*x)).collect(),
            Dtype::F16 => twos.map(|x| f16::from_le_bytes(*x).to_f32()).collect(),
            Dtype::Bf16 => twos.map(|x| bf16::from_le_bytes(*x).to_f32()).collect(),
            Dtype::I32 => fours.map(|x| i32::from_le_bytes(*x) as f32).collect(),
            Dtype::U32 => fours.map(|x| u32::from_le_bytes(*x) as f32).collect(),
            Dtype::F64 => eights.map(|x| f64::from_le_bytes(*x) as f32).collect(),
            Dtype::Packed => sixes.map(|x| packed::decode(*x) as f32).collect(),
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| *dtype as u8 == code)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_whole_numbers_are_the_same_in_every_type() {
        let numbers: Vec<f32> = (0..=256u16).map(f32::from).collect();
        for dtype in Dtype::ALL {
            let bytes = dtype.encode(&numbers);
            assert_eq!(bytes.len(), numbers.len() * dtype.size_bytes(), "{dtype}");
            assert_eq!(dtype.decode(&bytes), numbers, "{dtype}");
            assert_eq!(Dtype::from_code(dtype as u8), Some(dtype));
        }
    }
}
