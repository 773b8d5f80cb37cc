//! Steps before the first request. A GPU compiles each kernel when it is first used, which can take longer
//! than a step may; so a rank computes what steps compute before it says that it is loaded. Meanwhile it
//! reports every second that it does.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use jackalope_mlx::{Error, Group, eval, memory};
use jackalope_models::{Batch, Model, Parallel, SequenceCache, Span};
use jackalope_protocol::{FromRank, Phase};

use crate::control::Control;

/// Time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Lengths of the prompts of three sequences, which later decode together: kernels for many rows differ from
/// those for few, and operations are fused in steps of few rows, from 32 of which experts are sorted if each row
/// chooses two.
const PROMPT_TOKENS: [usize; 3] = [128, 32, 12];

/// Computes steps of all kinds without the other ranks. `rank` is that of the whole model among
/// `num_ranks`.
///
/// # Errors
/// Fails if the device does.
pub(crate) fn warm_up(
    model: &Model,
    parallel: &Parallel,
    [rank, num_ranks]: [usize; 2],
    control: &Control,
) -> Result<(), Error> {
    control.set_phase(Phase::WarmingUp);
    let (ended, has_ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut has_more = Err(RecvTimeoutError::Timeout);
            while has_more == Err(RecvTimeoutError::Timeout) {
                // If the coordinator is gone, the control thread ends the process.
                control.send(&FromRank::WarmingUp).ok();
                has_more = has_ended.recv_timeout(REPORT_INTERVAL);
            }
        });
        let result = rehearse(model, parallel, [rank, num_ranks]);
        drop(ended);
        // What MLX keeps for later steps would count as memory that is not free.
        result.and_then(|()| memory::clear_cache())
    })
}

/// Computes three prompts, and decode steps of one of the sequences and of all.
fn rehearse(
    model: &Model,
    parallel: &Parallel,
    [rank, num_ranks]: [usize; 2],
) -> Result<(), Error> {
    parallel.group().replace(Group::rehearsal(rank, num_ranks));
    let result = steps(model);
    parallel.group().replace(Group::single());
    result
}

fn steps(model: &Model) -> Result<(), Error> {
    let longest = model.facts().context_tokens as usize / 2;
    let lens = PROMPT_TOKENS.map(|len| len.min(longest).max(1));
    let mut caches = PROMPT_TOKENS.map(|_| model.new_cache());
    for (cache, len) in caches.iter_mut().zip(lens) {
        step(model, len, &mut [cache])?;
    }
    step(model, 1, &mut [&mut caches[0]])?;
    step(model, 1, &mut caches.iter_mut().collect::<Vec<_>>())
}

/// Computes `len` tokens of each sequence.
fn step(model: &Model, len: usize, caches: &mut [&mut SequenceCache]) -> Result<(), Error> {
    let rows = (0..caches.len()).map(|idx| Span { start_idx: idx * len, len }).collect();
    let logits_at = (0..caches.len()).map(|idx| (idx + 1) * len - 1).collect();
    let tokens = vec![0; caches.len() * len];
    let hidden = model.hidden(&Batch { tokens: &tokens, rows, logits_at }, caches);
    let mut arrays: Vec<_> = caches.iter().flat_map(|cache| cache.arrays()).collect();
    arrays.push(if model.has_last_layer() { model.logits(&hidden) } else { hidden });
    eval(&arrays.iter().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jackalope_models::{Compute, GroupCell};
    use jackalope_protocol::split::Split;

    use super::*;

    #[test]
    fn every_rank_of_a_split_rehearses_its_steps_without_the_others() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
        let splits = [vec![1], vec![1, 1, 1]].map(Split::Tensor);
        for split in splits.into_iter().chain([Split::Pipeline(vec![1, 2, 1])]) {
            for rank in 0..split.num_ranks() {
                let group = GroupCell::new(Group::single());
                let parallel = Parallel::new(rank, &split, group, Compute::Stock).unwrap();
                let model = Model::load(&dir, &parallel, &mut |_| {}).unwrap();
                rehearse(&model, &parallel, [rank, split.num_ranks()]).unwrap();
                assert_eq!(parallel.group().current().size(), 1, "the others may join now");
            }
        }
    }
}
