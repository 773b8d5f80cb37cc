//! x86-64 with AVX-512 and its whole-number dot products.

use super::Avx2;

/// Proof that the machine has AVX-512 F, BW, DQ, VL and VNNI, and what [`Avx2`] proves: only
/// [`Avx512::detect`] makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    /// The proof, if the machine has the features.
    pub(crate) fn detect() -> Option<Avx512> {
        let has_all = Avx2::detect().is_some()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni");
        has_all.then_some(Avx512(()))
    }
}
