//! Random tensors in the formats of MLX checkpoints.

use std::io::{self, Write};

/// Description of a tensor whose content is not in memory.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) kind: Kind,
}

/// Content of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Packed quantised weights: random words.
    Packed,
    /// bfloat16 values that differ only in the last bits.
    Near(f32),
    /// bfloat16 values, uniformly distributed over `-limit..limit`.
    Spread(f32),
    /// bfloat16 ones.
    Ones,
    /// Rows of different indices below this number.
    Indices(u32),
}

impl Kind {
    pub(super) fn dtype(self) -> &'static str {
        match self {
            Kind::Packed => "U32",
            Kind::Indices(_) => "I32",
            _ => "BF16",
        }
    }

    fn item_bytes(self) -> usize {
        if matches!(self, Kind::Packed | Kind::Indices(_)) { 4 } else { 2 }
    }
}

/// Returns the tensors of a matrix `[…, output, input]`, in affine quantisation below 16 bits. Its
/// values have a variance of `1 / input`, so that activations keep their size from layer to layer.
pub(super) fn matrix(name: &str, shape: &[usize], bits: u32, group_size: usize) -> Vec<Tensor> {
    let (input, outer) = shape.split_last().expect("a matrix has dimensions");
    let tensor = |part: &str, width: usize, kind| Tensor {
        name: format!("{name}.{part}"),
        shape: outer.iter().copied().chain([width]).collect(),
        kind,
    };
    // The standard deviation of a uniform distribution over n steps of s is s·n/√12.
    let spread = (12.0 / *input as f32).sqrt();
    if bits == 16 {
        return vec![tensor("weight", *input, Kind::Spread(spread / 2.0))];
    }
    let num_steps = (1_u32 << bits) as f32;
    vec![
        tensor("weight", input * bits as usize / 32, Kind::Packed),
        tensor("scales", input / group_size, Kind::Near(spread / num_steps)),
        tensor("biases", input / group_size, Kind::Near(-spread / 2.0)),
    ]
}

impl Tensor {
    pub(super) fn num_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.kind.item_bytes()
    }

    /// Writes the tensor's content to `file`; the same `seed` gives the same content.
    pub(super) fn write(&self, seed: u64, file: &mut impl Write) -> io::Result<()> {
        let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if let Kind::Indices(bound) = self.kind {
            let [rows, width] = self.shape[..] else { panic!("a table has two dimensions") };
            for _ in 0..rows {
                let first = (random.next() % u64::from(bound)) as u32;
                for idx in 0..width as u32 {
                    file.write_all(&((first + idx) % bound).to_le_bytes())?;
                }
            }
            return Ok(());
        }
        let num_words = self.num_bytes().div_ceil(8);
        let mut left = self.num_bytes();
        for _ in 0..num_words {
            let bytes = match self.kind {
                Kind::Packed => random.next().to_le_bytes(),
                kind => random.four_halves(kind),
            };
            file.write_all(&bytes[..left.min(8)])?;
            left = left.saturating_sub(8);
        }
        Ok(())
    }
}

/// xorshift64: fast, and random enough for meaningless weights.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn four_halves(&mut self, kind: Kind) -> [u8; 8] {
        let word = self.next();
        let mut bytes = [0; 8];
        for (idx, half) in bytes.chunks_exact_mut(2).enumerate() {
            let random = (word >> (16 * idx)) as u16;
            let value = match kind {
                Kind::Packed | Kind::Indices(_) => unreachable!("these are words"),
                Kind::Near(value) => bf16(value) ^ (random & 7),
                Kind::Spread(limit) => bf16(limit * (f32::from(random) / 32768.0 - 1.0)),
                Kind::Ones => bf16(1.0),
            };
            half.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }
}

/// Converts a number to bfloat16, rounded towards zero.
fn bf16(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(tensor: &Tensor) -> Vec<u8> {
        let mut content = Vec::new();
        tensor.write(7, &mut content).unwrap();
        content
    }

    #[test]
    fn tensors_have_the_bytes_they_announce_and_the_variance_that_keeps_activations() {
        for bits in [2, 3, 4, 5, 6, 8, 16] {
            for tensor in matrix("x", &[3, 192], bits, 64) {
                assert_eq!(content(&tensor).len(), tensor.num_bytes(), "{tensor:?}");
            }
        }
        let [dense] = &matrix("x", &[64, 256], 16, 64)[..] else { panic!("one tensor") };
        let values: Vec<f32> = content(dense)
            .chunks_exact(2)
            .map(|half| f32::from_bits(u32::from(u16::from_le_bytes([half[0], half[1]])) << 16))
            .collect();
        let table = Tensor { name: "x".to_owned(), shape: vec![50, 3], kind: Kind::Indices(7) };
        assert_eq!(content(&table).len(), table.num_bytes());
        for row in content(&table).chunks_exact(12) {
            let row = row.as_chunks::<4>().0.iter().map(|it| u32::from_le_bytes(*it));
            let row: std::collections::BTreeSet<u32> = row.collect();
            assert!(row.len() == 3 && row.iter().all(|index| *index < 7), "{row:?}");
        }
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        assert!((variance * 256.0 - 1.0).abs() < 0.05, "{variance}");
    }
}
