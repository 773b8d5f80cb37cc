//! What all CPU kernels are written with: vectors of the machine's instruction set, views of floats and of packed
//! weights, groups of activations as integers, and the threads that share the work.
//!
//! A kernel is one generic function over [`Simd`] or [`Wide`], marked `#[inline(always)]`; [`dispatched!`] or
//! [`dispatched_wide!`] wraps it in one copy per instruction set and picks the copy at run time. The value of type
//! `S: Simd` that a kernel passes around proves that the machine has the set, so that the code above this crate is
//! safe. Functions that kernels call for each row or vector are marked `#[inline]`, because kernels are compiled in
//! another crate.
//!
//! Nothing here depends on what a kernel computes, and no function's result depends on the number of threads.

mod elements;
mod exp;
mod floats;
mod matrix;
mod memory;
mod pieces;
mod profile;
mod quant;
mod rounding;
mod simd;
mod threads;
mod unpack;

pub use elements::{Elements, ElementsMut, Float};
pub use exp::{exp, tanh};
pub use floats::Floats;
pub use matrix::{DenseMatrix, Matrix};
pub use memory::{addresses, advise_huge_pages, move_into_huge_pages};
pub use pieces::{CHUNK, PIECE_ELEMENTS, cut_matrix_rows, piece_rows};
pub use profile::{KernelTime, ProfileSpan};
pub use quant::{QuantFormat, QuantMatrix, QuantMode, Scales};
pub use rounding::round_group;
#[cfg(target_arch = "aarch64")]
pub use simd::Neon;
#[cfg(target_arch = "x86_64")]
pub use simd::{Avx2, Avx512};
pub use simd::{
    InstructionSet, InstructionSetError, LANES, Lanes, Portable, Simd, VectorElement, WIDEST, Wide,
    e4m3,
};
pub use threads::Threads;
pub use unpack::{
    E2M1_FACTOR, E2M1_INTEGERS, E2M1_OFFSET, GROUPS_MAX, Region, bits_from, e8m0, scale_value,
    unpack,
};

/// Defines `fn name(instructions, arguments…)` that runs `generic(simd, arguments…)` compiled for the instruction set.
///
/// The function panics if this machine lacks the set, which is never so for that of a [`Threads`].
#[macro_export]
macro_rules! dispatched {
    (
        $(#[$doc:meta])*
        $vis:vis fn $name:ident $(<$param:ident: $bound:path>)? ($($arg:ident: $type:ty),* $(,)?) = $generic:ident
    ) => {
        $(#[$doc])*
        $vis fn $name $(<$param: $bound>)? (instructions: $crate::InstructionSet, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2 $(<$param: $bound>)? (simd: $crate::Avx2, $($arg: $type),*) {
                $generic(simd, $($arg),*);
            }
            match instructions {
                $crate::InstructionSet::Scalar => $generic($crate::Portable, $($arg),*),
                #[cfg(target_arch = "x86_64")]
                $crate::InstructionSet::Avx2 | $crate::InstructionSet::Avx512 => {
                    let simd = $crate::Avx2::detect().expect("`Threads` asserts its set");
                    #[expect(unsafe_code, reason = "calling a copy compiled for AVX2")]
                    // SAFETY: `simd` proves that the machine has what the copy was compiled for.
                    unsafe {
                        avx2(simd, $($arg),*);
                    }
                }
                #[cfg(target_arch = "aarch64")]
                $crate::InstructionSet::Neon => $generic($crate::Neon, $($arg),*),
                _ => unreachable!("{instructions:?} does not exist on this target"),
            }
        }
    };
}

/// Defines `fn name(instructions, arguments…)` that runs `generic(simd, arguments…)` compiled for the set, with its
/// widest vectors; otherwise as [`dispatched!`](crate::dispatched).
#[macro_export]
macro_rules! dispatched_wide {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $generic:ident) => {
        $(#[$doc])*
        $vis fn $name(instructions: $crate::InstructionSet, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(
                enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni"
            )]
            fn avx512(simd: $crate::Avx512, $($arg: $type),*) {
                $generic(simd, $($arg),*);
            }
            #[cfg(target_arch = "x86_64")]
            if instructions == $crate::InstructionSet::Avx512 {
                let simd = $crate::Avx512::detect().expect("`Threads` asserts its set");
                #[expect(unsafe_code, reason = "calling a copy compiled for AVX-512")]
                // SAFETY: `simd` proves that the machine has what the copy was compiled for.
                return unsafe { avx512(simd, $($arg),*) };
            }
            $crate::dispatched! { fn narrow($($arg: $type),*) = $generic }
            narrow(instructions, $($arg),*);
        }
    };
}
