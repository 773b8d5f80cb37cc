//! How the tokens that rank 0 draws reach the ranks that embed them.

use std::collections::VecDeque;

use jackalope_mlx::{Array, Dtype, Group};
use jackalope_protocol::{CacheId, TokenId};

/// Stands where only another rank knows the token, and only it embeds it.
const ELSEWHERE: TokenId = 0;

type Received = Result<Vec<(CacheId, TokenId)>, jackalope_mlx::Error>;

/// Who has to know.
#[derive(Debug)]
pub(crate) enum Drawn {
    /// All ranks embed: rank 0 contributes the tokens, the others zeros, to a sum.
    Summed,
    /// Ranks of a pipeline: the last one embeds. It takes tokens in when it needs them, so that it
    /// may be ahead of rank 0.
    Sent {
        /// The caches of each step that it has not taken in yet.
        under_way: VecDeque<Vec<CacheId>>,
        /// Steps whose tokens may be under way, one for each stage between; those of older ones are
        /// taken in whether they are needed or not.
        most: usize,
    },
}

impl Drawn {
    /// For a pipeline of so many stages.
    pub(crate) fn sent(num_stages: usize) -> Drawn {
        Drawn::Sent { under_way: VecDeque::new(), most: num_stages - 1 }
    }

    /// Tells of a step's tokens, one for each of `caches`, which only rank 0 knows. Gives back those
    /// that are known here then.
    pub(crate) fn share(
        &mut self,
        group: &Group,
        caches: Vec<CacheId>,
        own: Option<Vec<TokenId>>,
    ) -> Received {
        let len = i32::try_from(caches.len()).expect("a step has few rows");
        let last = group.size() - 1;
        let tokens = match (self, own) {
            (_, Some(own)) if last == 0 => own,
            (Drawn::Summed, own) => {
                let own = own.unwrap_or_else(|| vec![0; caches.len()]);
                group.all_sum(&Array::from_slice(&own, &[len])).to_vec()?
            }
            (Drawn::Sent { .. }, Some(own)) => {
                group.send(&Array::from_slice(&own, &[len]), last).eval()?;
                own
            }
            (Drawn::Sent { under_way, .. }, None) if group.rank() == last => {
                under_way.push_back(caches);
                return Ok(Vec::new());
            }
            (Drawn::Sent { .. }, None) => vec![ELSEWHERE; caches.len()],
        };
        Ok(caches.into_iter().zip(tokens).collect())
    }

    /// Takes in what is under way until nothing of it is for a cache that `is_needed`.
    pub(crate) fn take_in(
        &mut self,
        group: &Group,
        is_needed: impl Fn(CacheId) -> bool,
    ) -> Received {
        let Drawn::Sent { under_way, most } = self else { return Ok(Vec::new()) };
        let mut known = Vec::new();
        let is_waited_for = |caches: &Vec<CacheId>| caches.iter().any(|&cache| is_needed(cache));
        while *most < under_way.len() || under_way.iter().any(is_waited_for) {
            let Some(caches) = under_way.pop_front() else { break };
            let len = i32::try_from(caches.len()).expect("a step has few rows");
            let tokens: Vec<TokenId> = group.recv(&[len], Dtype::U32, 0).to_vec()?;
            known.extend(caches.into_iter().zip(tokens));
        }
        Ok(known)
    }
}
