//! Eight lanes of f32 and of small integers, wider ones where no bit shows the width ([`Wide`]), and the copies of a
//! kernel that are compiled for each instruction set ([`dispatched!`](crate::dispatched)).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod wide;

use std::env::VarError;
use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub use self::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use self::avx512::Avx512;
pub use self::element::VectorElement;
#[cfg(target_arch = "aarch64")]
pub use self::neon::Neon;
pub use self::portable::Portable;
pub use self::wide::{WIDEST, Wide};

/// Number of lanes of a vector.
pub const LANES: usize = 8;

/// A vector in memory.
pub type Lanes = [f32; LANES];

/// The instruction set that the kernels of a rank use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InstructionSet {
    /// Plain code for the target's baseline, without fused multiply-add: the reference.
    Scalar,
    /// x86-64 with AVX2, FMA, F16C and BMI2.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, DQ, VL, VNNI) beside what [`InstructionSet::Avx2`] has: integer products, those
    /// of three, five and six bits only with VBMI, and attention; the other kernels are those of AVX2.
    Avx512,
    /// The baseline of 64-bit ARM.
    Neon,
}

impl InstructionSet {
    /// Environment variable that selects an instruction set.
    pub const VARIABLE: &'static str = "JACKALOPE_CPU";

    /// All instruction sets, in ascending order of speed.
    const ALL: [InstructionSet; 4] = [
        InstructionSet::Scalar,
        InstructionSet::Neon,
        InstructionSet::Avx2,
        InstructionSet::Avx512,
    ];

    /// Returns the best set that this machine can execute.
    pub fn best() -> InstructionSet {
        *InstructionSet::available().last().expect("scalar code runs everywhere")
    }

    /// The set that the environment variable [`InstructionSet::VARIABLE`] names, else the best one.
    ///
    /// # Errors
    /// If it names no set, or one that this machine lacks: never another set than the one asked for.
    pub fn from_environment() -> Result<InstructionSet, InstructionSetError> {
        #[expect(clippy::disallowed_methods, reason = "a debugging switch of this crate alone")]
        let name = std::env::var(InstructionSet::VARIABLE);
        match name {
            Ok(name) => name.parse(),
            Err(VarError::NotPresent) => Ok(InstructionSet::best()),
            Err(VarError::NotUnicode(name)) => {
                Err(InstructionSetError::Unknown(name.to_string_lossy().into_owned()))
            }
        }
    }

    /// Returns the name that selects the set.
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::Scalar => "scalar",
            InstructionSet::Avx2 => "avx2",
            InstructionSet::Avx512 => "avx512",
            InstructionSet::Neon => "neon",
        }
    }

    /// Returns the sets that this machine can execute, in ascending order of speed.
    pub fn available() -> Vec<InstructionSet> {
        InstructionSet::ALL.into_iter().filter(|set| set.is_available()).collect()
    }

    /// Returns whether this machine can execute the set.
    pub fn is_available(self) -> bool {
        match self {
            InstructionSet::Scalar => true,
            InstructionSet::Neon => cfg!(target_arch = "aarch64"),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx2 => Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            InstructionSet::Avx512 => Avx512::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            InstructionSet::Avx2 | InstructionSet::Avx512 => false,
        }
    }
}

/// Reason why an instruction set cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstructionSetError {
    /// There is no set of this name.
    Unknown(String),
    /// This machine cannot execute the set.
    Unavailable(InstructionSet),
}

impl fmt::Display for InstructionSetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InstructionSetError::Unknown(name) => {
                write!(f, "no instruction set is called `{name}`")?
            }
            InstructionSetError::Unavailable(set) => {
                write!(f, "this machine has no {}", set.name())?;
            }
        }
        let names: Vec<_> = InstructionSet::available().iter().map(|set| set.name()).collect();
        write!(f, "\nhint: this machine has {}", names.join(", "))
    }
}

impl std::error::Error for InstructionSetError {}

impl FromStr for InstructionSet {
    type Err = InstructionSetError;

    /// Parses the [`InstructionSet::name`] of a set that this machine can execute.
    fn from_str(name: &str) -> Result<InstructionSet, InstructionSetError> {
        let set = InstructionSet::ALL.into_iter().find(|set| set.name() == name);
        let set = set.ok_or_else(|| InstructionSetError::Unknown(name.to_owned()))?;
        if set.is_available() { Ok(set) } else { Err(InstructionSetError::Unavailable(set)) }
    }
}

/// Vector operations of an instruction set. All but the fusing of [`Simd::mul_add`] are the same on every set.
pub trait Simd: Copy {
    /// Eight f32.
    type Floats: Copy;
    /// Eight unsigned integers below 256.
    type Codes: Copy;

    /// The set's name.
    const INSTRUCTIONS: InstructionSet;

    /// `a * b + c` of scalars, rounded as [`Simd::mul_add`] rounds, for loops that the compiler vectorises.
    fn mul_add_scalar(a: f32, b: f32, c: f32) -> f32;

    /// Loads a vector.
    fn load(self, from: &Lanes) -> Self::Floats;

    /// Stores a vector.
    fn store(self, values: Self::Floats, to: &mut Lanes);

    /// Returns a vector with `value` in every lane.
    fn splat(self, value: f32) -> Self::Floats;

    /// `a * b`, lane by lane.
    fn mul(self, a: Self::Floats, b: Self::Floats) -> Self::Floats;

    /// Loads eight values.
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::Floats;

    /// Like [`Simd::load_bf16`].
    fn load_f16(self, from: &[f16; LANES]) -> Self::Floats;

    /// Prefetches the memory `offset` bytes after `from`, which need not exist.
    fn prefetch<T>(self, from: &T, offset: usize);

    /// `a * b + c`, lane by lane; every set but [`Portable`] rounds once.
    fn mul_add(self, a: Self::Floats, b: Self::Floats, c: Self::Floats) -> Self::Floats;

    /// Adds the lanes as a tree, halves onto halves: `((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))`.
    fn sum(self, values: Self::Floats) -> f32;

    /// [`Simd::sum`] of each vector.
    #[inline(always)]
    fn sum_four(self, [a, b, c, d]: [Self::Floats; 4]) -> [f32; 4] {
        [self.sum(a), self.sum(b), self.sum(c), self.sum(d)]
    }

    /// Eight codes of `BITS` bits. Up to four bits all are in `low`, from its lowest bit on, and `high` is ignored;
    /// otherwise the first four are in `low` and the others in `high`.
    fn codes<const BITS: usize>(self, low: u32, high: u32) -> Self::Codes;

    /// Converts the codes to floats.
    fn to_floats(self, codes: Self::Codes) -> Self::Floats;

    /// Looks up the table's entry for each code; codes are below 16.
    fn look_up(self, table: &[f32; 16], codes: Self::Codes) -> Self::Floats;

    /// The values of eight eight-bit floats, four in each word; see [`e4m3`].
    fn e4m3(self, low: u32, high: u32) -> Self::Floats;
}

/// The value of an eight-bit float: sign, four bits of exponent (bias 7), three of mantissa; no infinity, and only
/// `0x7f` and `0xff` are not numbers (Micikevicius et al. 2022, "FP8 formats for deep learning", section 3).
#[inline(always)]
pub fn e4m3(code: u32) -> f32 {
    let magnitude = code & 0x7f;
    let value = match magnitude {
        0x7f => f32::NAN,
        0x08.. => f32::from_bits((magnitude << 20) + (120 << 23)),
        _ => magnitude as f32 / 512.0,
    };
    f32::from_bits(value.to_bits() | (code & 0x80) << 24)
}

/// Returns by how many bits to shift right so that lane `l` has its code in the lowest bits; see
/// [`Simd::codes`].
const fn code_shifts(bits: usize) -> [u32; LANES] {
    let mut shifts = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        shifts[lane] = (bits * if bits <= 4 { lane } else { lane % 4 }) as u32;
        lane += 1;
    }
    shifts
}

#[cfg(test)]
mod tests;
