//! How many tokens of prompts a step takes while no sequence decodes.
//!
//! Ranks read a prompt faster in larger pieces: a mixture reads each chosen expert once per piece,
//! and a GPU has more rows to divide. But requests that arrive meanwhile wait for the steps under
//! way, so pieces grow only while they take little time. They also need more memory, which plans of
//! splits do not count: on machines that a model just fits, they do not grow.

use std::time::Duration;

use jackalope_protocol::RankFacts;

use super::EngineConfig;

/// How long a step that only reads prompts should take at most.
pub const PROMPT_STEP_MAX: Duration = Duration::from_secs(2);

/// Memory that a rank must have left after loading for longer steps, in bytes. Caches get four fifths of it, and the
/// activations of 2,048 tokens take at most about 1 GiB in the largest models.
const FREE_BYTES_MIN: u64 = 8 << 30;

/// The number of tokens, which follows the ranks' speed.
#[derive(Debug)]
pub(super) struct PromptPace {
    least: usize,
    most: usize,
    num_tokens: usize,
}

impl PromptPace {
    /// Creates the pace of ranks that have loaded.
    pub(super) fn new(config: &EngineConfig, facts: &[RankFacts]) -> PromptPace {
        let least = config.step_tokens as usize;
        let has_room = facts.iter().all(|facts| FREE_BYTES_MIN <= facts.free_bytes);
        let most = config.prompt_step_tokens.filter(|_| has_room);
        let most = most.map_or(least, |most| most as usize).max(least);
        PromptPace { least, most, num_tokens: least }
    }

    /// Returns the maximum number of tokens of the next step.
    pub(super) fn num_tokens(&self) -> usize {
        self.num_tokens
    }

    /// Notes how long a step of `num_tokens` took. Steps that were planned at a larger or smaller number may still be
    /// under way, so the time that the current number would take decides.
    pub(super) fn note(&mut self, num_tokens: usize, took: Duration) {
        if num_tokens < self.num_tokens {
            return;
        }
        let expected = took.mul_f64(self.num_tokens as f64 / num_tokens as f64);
        if PROMPT_STEP_MAX < expected {
            self.num_tokens = (self.num_tokens / 2).max(self.least);
        } else if expected * 2 <= PROMPT_STEP_MAX {
            self.num_tokens = (self.num_tokens * 2).min(self.most);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fake_facts;

    fn pace_with(prompt_step_tokens: Option<u32>, free_bytes: [u64; 2]) -> PromptPace {
        let config =
            EngineConfig { step_tokens: 512, prompt_step_tokens, ..EngineConfig::default() };
        let facts = free_bytes.map(|free_bytes| RankFacts { free_bytes, ..fake_facts(9, 9) });
        PromptPace::new(&config, &facts)
    }

    fn pace(prompt_step_tokens: Option<u32>) -> PromptPace {
        pace_with(prompt_step_tokens, [FREE_BYTES_MIN; 2])
    }

    /// Notes full steps of ranks with a speed in tokens per second.
    fn run(pace: &mut PromptPace, num_steps: u32, tokens_per_s: f64) -> usize {
        for _ in 0..num_steps {
            let num_tokens = pace.num_tokens();
            pace.note(num_tokens, Duration::from_secs_f64(num_tokens as f64 / tokens_per_s));
        }
        pace.num_tokens()
    }

    #[test]
    fn steps_grow_while_they_are_fast_and_shrink_when_they_are_not() {
        let mut pace = pace(Some(2048));
        for (tokens_per_s, expected) in
            [(100.0, 512), (600.0, 1024), (900.0, 1024), (1100.0, 2048), (1e6, 2048), (500.0, 512)]
        {
            assert_eq!(
                run(&mut pace, 8, tokens_per_s),
                expected,
                "{tokens_per_s} tokens per second"
            );
        }
    }

    #[test]
    fn a_limit_that_is_not_larger_holds_for_all_steps() {
        for limit in [None, Some(0), Some(512)] {
            assert_eq!(run(&mut pace(limit), 8, 1e6), 512);
        }
        assert_eq!(run(&mut pace(Some(700)), 8, 1e6), 700);
    }

    #[test]
    fn steps_do_not_grow_where_memory_is_short_or_unknown() {
        for free_bytes in [[FREE_BYTES_MIN, FREE_BYTES_MIN - 1], [0, FREE_BYTES_MIN]] {
            assert_eq!(run(&mut pace_with(Some(2048), free_bytes), 8, 1e6), 512);
        }
    }

    #[test]
    fn short_steps_and_those_planned_before_say_nothing_about_the_next() {
        let mut pace = pace(Some(2048));
        pace.note(511, Duration::from_millis(1));
        assert_eq!(pace.num_tokens(), 512);
        run(&mut pace, 2, 1e6);
        // Two steps of 2048 are under way when the ranks become slower.
        pace.note(2048, Duration::from_secs(3));
        pace.note(2048, Duration::from_secs(3));
        assert_eq!(pace.num_tokens(), 1024);
    }
}
