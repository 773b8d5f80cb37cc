//! Checks the results of every operation for every element type.

use jackalope_mlx::{self as mlx, Array};
use jackalope_protocol::counted;
use jackalope_transport::{Dtype, Group};

/// Numbers of elements of the messages: one, an odd number, and enough to be cut into segments.
const ELEMENTS: [usize; 3] = [1, 1023, 300_001];

/// Operations of a group on numbers that every type represents exactly.
pub(super) trait Collectives {
    fn rank(&self) -> usize;
    fn size(&self) -> usize;
    /// Whether the group supports this element type.
    fn has(&self, _dtype: Dtype) -> bool {
        true
    }
    /// Returns the sum over all ranks.
    fn all_sum(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>>;
    /// Returns the numbers of all ranks, by rank.
    fn all_gather(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>>;
    /// Sends `numbers` to rank `to`.
    fn send(&mut self, numbers: &[f32], dtype: Dtype, to: usize) -> anyhow::Result<()>;
    /// Receives `count` numbers from rank `from`.
    fn recv(&mut self, count: usize, dtype: Dtype, from: usize) -> anyhow::Result<Vec<f32>>;
}

impl Collectives for Group {
    fn rank(&self) -> usize {
        self.rank()
    }

    fn size(&self) -> usize {
        self.size()
    }

    fn all_sum(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>> {
        let mut data = dtype.encode(numbers);
        self.all_sum(&mut data, dtype)?;
        Ok(dtype.decode(&data))
    }

    fn all_gather(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>> {
        let local = dtype.encode(numbers);
        let mut out = vec![0; local.len() * self.size()];
        self.all_gather(&local, &mut out, dtype)?;
        Ok(dtype.decode(&out))
    }

    fn send(&mut self, numbers: &[f32], dtype: Dtype, to: usize) -> anyhow::Result<()> {
        Ok(self.send(&dtype.encode(numbers), dtype, to)?)
    }

    fn recv(&mut self, count: usize, dtype: Dtype, from: usize) -> anyhow::Result<Vec<f32>> {
        let mut data = vec![0; count * dtype.size_bytes()];
        self.recv(&mut data, dtype, from)?;
        Ok(dtype.decode(&data))
    }
}

/// A group used inside evaluations.
pub(super) struct Evaluated<'a>(pub(super) &'a mlx::Group);

impl Evaluated<'_> {
    /// Returns an array of shape `[numbers]` with this element type.
    fn array(numbers: &[f32], dtype: Dtype) -> Array {
        let len = i32::try_from(numbers.len()).expect("a check is small");
        Array::from_slice(numbers, &[len]).astype(mlx_dtype(dtype))
    }

    fn numbers(array: &Array) -> anyhow::Result<Vec<f32>> {
        Ok(array.astype(mlx::Dtype::F32).to_vec()?)
    }
}

impl Collectives for Evaluated<'_> {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.size()
    }

    fn has(&self, dtype: Dtype) -> bool {
        match dtype {
            Dtype::F64 => mlx::device() == mlx::Device::Cpu,
            Dtype::Packed => false,
            _ => true,
        }
    }

    fn all_sum(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>> {
        Self::numbers(&self.0.all_sum(&Self::array(numbers, dtype)))
    }

    fn all_gather(&mut self, numbers: &[f32], dtype: Dtype) -> anyhow::Result<Vec<f32>> {
        Self::numbers(&self.0.all_gather(&Self::array(numbers, dtype)))
    }

    fn send(&mut self, numbers: &[f32], dtype: Dtype, to: usize) -> anyhow::Result<()> {
        Ok(self.0.send(&Self::array(numbers, dtype), to).eval()?)
    }

    fn recv(&mut self, count: usize, dtype: Dtype, from: usize) -> anyhow::Result<Vec<f32>> {
        let len = i32::try_from(count).expect("a check is small");
        Self::numbers(&self.0.recv(&[len], mlx_dtype(dtype), from))
    }
}

fn mlx_dtype(dtype: Dtype) -> mlx::Dtype {
    match dtype {
        Dtype::F32 => mlx::Dtype::F32,
        Dtype::F16 => mlx::Dtype::F16,
        Dtype::Bf16 => mlx::Dtype::Bf16,
        Dtype::I32 => mlx::Dtype::I32,
        Dtype::U32 => mlx::Dtype::U32,
        // The group packs f64 in evaluated sums.
        Dtype::F64 | Dtype::Packed => mlx::Dtype::F64,
    }
}

/// Result of one check on this rank.
pub(super) struct Checked {
    pub(super) op: &'static str,
    pub(super) dtype: Dtype,
    pub(super) error: Option<String>,
}

/// Checks every operation with every type, and, for a group that guarantees it, the order of its
/// sums. After a failure the group is not used again, and all further checks report that failure.
pub(super) fn all(group: &mut dyn Collectives, sums_in_rank_order: bool) -> Vec<Checked> {
    type Check = fn(&mut dyn Collectives, Dtype) -> anyhow::Result<()>;
    let checks: [(&'static str, Check); 3] =
        [("all_sum", all_sum), ("all_gather", all_gather), ("send_recv", send_recv)];
    let mut failed: Option<String> = None;
    let mut checked = Vec::new();
    let mut run = |op, dtype, group: &mut dyn Collectives, check: Check| {
        let error = failed.clone().or_else(|| check(group, dtype).err().map(|e| format!("{e:#}")));
        failed = failed.take().or_else(|| error.clone());
        checked.push(Checked { op, dtype, error });
    };
    for (op, check) in checks {
        for dtype in Dtype::ALL.into_iter().filter(|dtype| group.has(*dtype)).collect::<Vec<_>>() {
            run(op, dtype, group, check);
        }
    }
    if sums_in_rank_order {
        run("same_bits", Dtype::F32, group, |group, _| same_bits(group));
    }
    checked
}

/// Returns the input of a rank: integers so small that bf16 represents them and their sums over
/// eight ranks.
fn numbers(rank: usize, elements: usize) -> Vec<f32> {
    (0..elements).map(|idx| ((idx * 3 + rank * 5) % 29) as f32).collect()
}

fn expect(found: &[f32], expected: &[f32]) -> anyhow::Result<()> {
    anyhow::ensure!(
        found.len() == expected.len(),
        "received {} instead of {}",
        counted(found.len(), "number"),
        expected.len()
    );
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(idx) = wrong {
        let (found, expected, len) = (found[idx], expected[idx], expected.len());
        anyhow::bail!("number {idx} of {len} is {found}, expected {expected}");
    }
    Ok(())
}

fn all_sum(group: &mut dyn Collectives, dtype: Dtype) -> anyhow::Result<()> {
    let (rank, size) = (group.rank(), group.size());
    for elements in ELEMENTS {
        let mut expected = vec![0.0; elements];
        for rank in 0..size {
            let numbers = numbers(rank, elements);
            expected.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        expect(&group.all_sum(&numbers(rank, elements), dtype)?, &expected)?;
    }
    Ok(())
}

fn all_gather(group: &mut dyn Collectives, dtype: Dtype) -> anyhow::Result<()> {
    let (rank, size) = (group.rank(), group.size());
    for elements in ELEMENTS {
        let expected: Vec<f32> = (0..size).flat_map(|rank| numbers(rank, elements)).collect();
        expect(&group.all_gather(&numbers(rank, elements), dtype)?, &expected)?;
    }
    Ok(())
}

/// Sends round the ring, in both directions. Two ranks of a stock group may not send to each other
/// at the same time, so every second rank receives first.
fn send_recv(group: &mut dyn Collectives, dtype: Dtype) -> anyhow::Result<()> {
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return Ok(());
    }
    for elements in ELEMENTS {
        for step in [1, size - 1] {
            let (to, from) = ((rank + step) % size, (rank + size - step) % size);
            let ours = numbers(rank, elements);
            let sends_first = rank.is_multiple_of(2);
            if sends_first {
                group.send(&ours, dtype, to)?;
            }
            let found = group.recv(elements, dtype, from)?;
            if !sends_first {
                group.send(&ours, dtype, to)?;
            }
            expect(&found, &numbers(from, elements))?;
        }
    }
    Ok(())
}

/// Sums noise whose sum depends on the order of the ranks: every rank must get the same bits, and
/// those of a sum in rank order.
fn same_bits(group: &mut dyn Collectives) -> anyhow::Result<()> {
    let (rank, size) = (group.rank(), group.size());
    let noise = |rank: usize, elements: usize| -> Vec<f32> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64.wrapping_mul(rank as u64 + 1);
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let exponent = (state >> 40) % 24;
            ((state as u32 as f32) - 2_147_483_648.0) / (1u64 << exponent) as f32
        };
        (0..elements).map(|_| next()).collect()
    };
    for elements in ELEMENTS {
        let mut expected = noise(0, elements);
        for rank in 1..size {
            let numbers = noise(rank, elements);
            expected.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        expect(&group.all_sum(&noise(rank, elements), Dtype::F32)?, &expected)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::expect;

    #[test]
    fn one_number_is_singular_in_messages() {
        let message = |found: &[f32]| expect(found, &[1.0; 3]).unwrap_err().to_string();
        assert_eq!(message(&[1.0]), "received 1 number instead of 3");
        assert_eq!(message(&[1.0; 2]), "received 2 numbers instead of 3");
    }
}
