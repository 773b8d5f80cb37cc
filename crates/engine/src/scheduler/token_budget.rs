//! Divides the tokens of a step among the running sequences.

use jackalope_protocol::PressureTier;

use super::Scheduler;

impl Scheduler {
    /// Returns the number of tokens of this step for each running sequence: one for each decoding
    /// sequence whose turn it is; of the rest, the oldest prompt gets most, and the shortest
    /// prompts follow.
    pub(super) fn allocate_token_budget(&self) -> Vec<usize> {
        let lookahead = self.limits.lookahead;
        let wanted: Vec<usize> = self.running.iter().map(|it| it.num_wanted(lookahead)).collect();
        let mut shares = vec![0; wanted.len()];
        let (mut prompts, decoding): (Vec<usize>, Vec<usize>) =
            (0..wanted.len()).partition(|idx| 1 < wanted[*idx]);
        // All groups together take as long as one step of the full size, so a decoding sequence
        // waits no longer for its turn.
        let num_turns = if decoding.is_empty() { 1 } else { self.num_groups() };
        let mut budget = self.step_tokens().div_ceil(num_turns);
        let row_tokens = self.row_tokens();
        let mut give = |idx: usize, most: usize, budget: &mut usize| {
            let wanted = wanted[idx].min(row_tokens);
            let num_tokens = (wanted - shares[idx]).min(most).min(*budget);
            shares[idx] += num_tokens;
            *budget -= num_tokens;
        };
        self.round_robin(decoding).into_iter().for_each(|idx| give(idx, 1, &mut budget));
        if let Some(oldest) = prompts.first().copied() {
            let most = (budget * 3 / 4).max(1);
            give(oldest, most, &mut budget);
            prompts.sort_by_key(|idx| (wanted[*idx], *idx));
            prompts
                .iter()
                .filter(|idx| **idx != oldest)
                .for_each(|idx| give(*idx, usize::MAX, &mut budget));
            give(oldest, usize::MAX, &mut budget);
        }
        shares
    }

    /// Returns the maximum number of tokens of the next step. While a sequence decodes, which waits for its next token,
    /// steps stay short; longer ones need more memory.
    pub(super) fn step_tokens(&self) -> usize {
        let is_prompt = |num_wanted: usize| 1 < num_wanted;
        let mut running = self.running.iter().map(|it| it.num_wanted(self.limits.lookahead));
        if self.pressure == PressureTier::Normal && running.all(is_prompt) {
            self.prompt_step_tokens
        } else {
            self.limits.step_tokens
        }
    }

    /// Returns the maximum number of tokens of a row. Layers with windows hold a whole row, so every sequence would need
    /// memory for a longer one.
    fn row_tokens(&self) -> usize {
        if self.caches.has_windows() { self.limits.step_tokens } else { usize::MAX }
    }

    /// Returns the number of groups of decoding sequences; each step takes one group.
    fn num_groups(&self) -> usize {
        if self.limits.lookahead { self.limits.num_stages } else { 1 }
    }

    /// Selects the decoding sequences that have a row in this step. If every sequence had a row in
    /// every step, pipeline stages would wait for each other; with two stages, one half of the
    /// sequences is on the first while the other half is on the second. Sequences whose last row is
    /// longest ago come first. One that waits for a token in flight is selected only if all do.
    fn round_robin(&self, mut decoding: Vec<usize>) -> Vec<usize> {
        if self.num_groups() == 1 {
            return decoding;
        }
        let most = decoding.len().div_ceil(self.num_groups());
        decoding.retain(|idx| self.running[*idx].num_wanted(true) == 1);
        let is_known = |idx: &usize| self.running[*idx].num_pending == 0;
        if decoding.iter().any(is_known) {
            decoding.retain(is_known);
        }
        decoding.sort_by_key(|idx| self.running[*idx].last_step);
        decoding.truncate(most);
        decoding
    }
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::{CacheCost, CacheId, PressureTier, StepPlan};

    use crate::testing::{FakeCaches, overflowing_model};
    use crate::{
        CacheCapacity, RankCapacity, Request, RequestId, RequestLimits, RequestOptions,
        SamplingOptions, Scheduler, SchedulerLimits,
    };

    const VOCAB_SIZE: u32 = 50;
    const STEP_TOKENS: usize = 64;

    fn request(prompt_tokens: usize) -> Request {
        let limits = RequestLimits {
            context_tokens: 128,
            max_prompt_tokens: 128,
            vocab_size: VOCAB_SIZE,
            eos_tokens: Vec::new(),
        };
        let options = RequestOptions {
            prompt: vec![1; prompt_tokens],
            max_tokens: Some(20),
            sampling: SamplingOptions { seed: Some(1), ..SamplingOptions::default() },
            ..RequestOptions::default()
        };
        Request::new(options, &limits).unwrap()
    }

    fn caches(plan: &StepPlan) -> Vec<CacheId> {
        plan.rows.iter().map(|row| row.cache).collect()
    }

    #[test]
    fn in_a_pipeline_one_half_decodes_while_the_other_is_under_way() {
        let limits = SchedulerLimits {
            step_tokens: STEP_TOKENS,
            num_stages: 2,
            keep_prefixes: false,
            ..SchedulerLimits::new(VOCAB_SIZE, CacheCapacity::of_blocks(100))
        };
        let (mut scheduler, mut ranks) = (Scheduler::new(limits), FakeCaches::default());
        let mut model = overflowing_model(VOCAB_SIZE);
        for id in 0..5 {
            scheduler.submit(RequestId(id), request(3));
        }
        let prompts = scheduler.plan().unwrap();
        assert_eq!(prompts.rows.len(), 5);
        scheduler.commit(ranks.execute(&prompts, &mut model)).unwrap();
        let (first, second) = (scheduler.plan().unwrap(), scheduler.plan().unwrap());
        assert!(!scheduler.may_plan(), "one for each stage is under way");
        let both = [caches(&first), caches(&second)];
        assert_eq!((both[0].len(), both[1].len()), (3, 2));
        assert_eq!(both.concat(), caches(&prompts), "everybody has one turn");
        scheduler.commit(ranks.execute(&first, &mut model)).unwrap();
        let third = scheduler.plan().unwrap();
        assert_eq!(caches(&third), both[0], "nobody who waits for its token has a turn");
        // A prompt gets only its part of the step, so the decoding sequences do not wait longer.
        scheduler.commit(ranks.execute(&second, &mut model)).unwrap();
        scheduler.submit(RequestId(5), request(100));
        let fourth = scheduler.plan().unwrap();
        assert_eq!(caches(&fourth)[..2], both[1]);
        assert_eq!(fourth.num_tokens(), STEP_TOKENS / 2);
    }

    /// Returns the number of tokens of each row of the next steps, until all prompts are computed.
    fn rows_until_decoding(scheduler: &mut Scheduler, ranks: &mut FakeCaches) -> Vec<Vec<usize>> {
        let mut model = overflowing_model(VOCAB_SIZE);
        let mut steps = Vec::new();
        while let Some(plan) = scheduler.plan() {
            let rows: Vec<usize> = plan.rows.iter().map(|row| row.input.len()).collect();
            scheduler.commit(ranks.execute(&plan, &mut model)).unwrap();
            if rows.iter().all(|num_tokens| *num_tokens == 1) {
                break;
            }
            steps.push(rows);
        }
        steps
    }

    fn scheduler(cost: CacheCost) -> (Scheduler, FakeCaches) {
        let capacity = CacheCapacity::new(vec![RankCapacity::new(1 << 20, cost)]);
        let limits = SchedulerLimits {
            step_tokens: STEP_TOKENS,
            keep_prefixes: false,
            lookahead: false,
            ..SchedulerLimits::new(VOCAB_SIZE, capacity.clone())
        };
        let block_tokens = limits.block_tokens;
        (Scheduler::new(limits), FakeCaches::with_capacity(block_tokens, capacity))
    }

    const ALL_POSITIONS: CacheCost = CacheCost {
        bytes_per_token: 1,
        window_bytes_per_token: 0,
        window_tokens: 0,
        state_bytes: 0,
    };

    #[test]
    fn steps_that_only_read_prompts_may_be_longer() {
        let (mut scheduler, mut ranks) = scheduler(ALL_POSITIONS);
        scheduler.set_prompt_step_tokens(100);
        scheduler.submit(RequestId(0), request(5));
        scheduler.submit(RequestId(1), request(120));
        // The first sequence decodes when the rest of the second prompt is read.
        let steps = rows_until_decoding(&mut scheduler, &mut ranks);
        assert_eq!(steps, [[5, 95], [1, 25]]);
        // Both decode.
        scheduler.submit(RequestId(2), request(120));
        let steps = rows_until_decoding(&mut scheduler, &mut ranks);
        assert_eq!(steps, [[1, 1, 62], [1, 1, 58]]);
    }

    #[test]
    fn steps_stay_short_while_memory_is() {
        let (mut scheduler, mut ranks) = scheduler(ALL_POSITIONS);
        scheduler.set_prompt_step_tokens(100);
        scheduler.set_pressure(PressureTier::Warn);
        scheduler.submit(RequestId(0), request(120));
        assert_eq!(rows_until_decoding(&mut scheduler, &mut ranks), [[64], [56]]);
    }

    #[test]
    fn a_number_below_that_of_all_steps_changes_nothing() {
        let (mut scheduler, mut ranks) = scheduler(ALL_POSITIONS);
        scheduler.set_prompt_step_tokens(1);
        scheduler.submit(RequestId(0), request(120));
        assert_eq!(rows_until_decoding(&mut scheduler, &mut ranks), [[64], [56]]);
    }

    /// Every sequence is promised the memory of the longest row.
    #[test]
    fn with_windows_several_prompts_share_a_longer_step_but_no_row_is_longer() {
        let windows = CacheCost { window_bytes_per_token: 1, window_tokens: 8, ..ALL_POSITIONS };
        let (mut scheduler, mut ranks) = scheduler(windows);
        scheduler.set_prompt_step_tokens(150);
        for id in 0..3 {
            scheduler.submit(RequestId(id), request(70));
        }
        let steps = rows_until_decoding(&mut scheduler, &mut ranks);
        assert_eq!(steps, [[64, 64, 22], [6, 6, 48]]);
    }
}
