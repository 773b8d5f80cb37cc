//! Times the groups against each other.

use std::time::{Duration, Instant};

use jackalope_mlx::{self as mlx, Array};
use jackalope_transport::Group;
use jackalope_transport::bench::{Contestant, Effort, LinkOp, LinkRow, contestant, in_turns};

use super::MlxGroup;

/// Groups that are measured in addition to the native one.
pub(super) struct Contestants<'a> {
    pub(super) groups: &'a [MlxGroup],
    /// A native group with encrypted connections.
    pub(super) encrypted: Option<&'a mut Group>,
}

/// One row, and the group that was measured.
pub(super) struct Timed {
    pub(super) backend: &'static str,
    pub(super) via: &'static str,
    pub(super) row: LinkRow,
}

/// Times the operations on `bytes` per rank, in turn. With `all`, these include the operations
/// whose time does not depend on the size.
pub(super) fn take(
    group: &mut Group,
    others: &mut Contestants<'_>,
    bytes: usize,
    all: bool,
    effort: &Effort,
) -> anyhow::Result<Vec<Timed>> {
    let mut names = Vec::new();
    let mut contestants: Vec<Contestant<'_, anyhow::Error>> = Vec::new();
    for op in LinkOp::ALL {
        let is_pairwise = matches!(op, LinkOp::Bare | LinkOp::SendRecv);
        if (is_pairwise && group.size() == 1) || (op == LinkOp::Barrier && !all) {
            continue;
        }
        let (backend, via) =
            if op == LinkOp::Bare { ("bare", "socket") } else { ("tcp", "transport") };
        names.push((backend, via, op));
        contestants.push(contestant(op, bytes, group.size()));
    }
    if let Some(encrypted) = others.encrypted.as_deref_mut() {
        let mut sums = contestant(LinkOp::AllSum, bytes, encrypted.size());
        names.push(("tcp", "encrypted", LinkOp::AllSum));
        contestants.push(Box::new(move |_, calls, times| sums(encrypted, calls, times)));
    }
    for inside in others.groups {
        for op in [LinkOp::AllSum, LinkOp::AllGather] {
            names.push((inside.backend, "mlx", op));
            contestants.push(evaluating(&inside.group, op, bytes)?);
        }
    }
    let times = in_turns(group, &mut contestants, effort)?;
    let timed = names.into_iter().zip(times).map(|((backend, via, op), mut times)| Timed {
        backend,
        via,
        row: LinkRow::new(op, bytes, &mut times),
    });
    Ok(timed.collect())
}

/// Minimum size at which every call of an all_sum gets a fresh input, so that MLX sums in place as
/// it does inside a model. Copying a smaller input costs nothing, and the calls follow each other
/// without a pause.
const FRESH_BYTES_MIN: usize = 1 << 20;

/// Returns a contestant that runs the operation as one evaluation: graph building, MLX's scheduling
/// and the collective.
fn evaluating<'a>(
    inside: &'a mlx::Group,
    op: LinkOp,
    bytes: usize,
) -> anyhow::Result<Contestant<'a, anyhow::Error>> {
    let elements = i32::try_from(bytes / 4)?;
    let zeros = Array::zeros(&[elements], mlx::Dtype::F32); // [elements]
    zeros.eval()?;
    Ok(Box::new(move |_: &mut Group, calls: u32, times: &mut Vec<Duration>| {
        for _ in 0..calls {
            let input = if bytes < FRESH_BYTES_MIN { zeros.clone() } else { &zeros + 1.0 }; // [elements]
            input.eval()?;
            let started = Instant::now();
            let out = match op {
                LinkOp::AllGather => inside.all_gather(&input), // [size * elements]
                _ => inside.all_sum(&input),                    // [elements]
            };
            drop(input);
            out.eval()?;
            times.push(started.elapsed());
        }
        Ok(())
    }))
}
