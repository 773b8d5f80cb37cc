//! Distributes the tokens that rank 0 samples to the ranks that embed them.

use std::collections::VecDeque;

use jackalope_mlx::{Array, Dtype, Group};
use jackalope_protocol::{CacheId, TokenId};

/// Placeholder for a token that only other ranks know and embed.
const ELSEWHERE: TokenId = 0;

type Received = Result<Vec<(CacheId, TokenId)>, jackalope_mlx::Error>;

/// How the sampled tokens are distributed.
#[derive(Debug)]
pub(crate) enum SampledTokens {
    /// All ranks embed: rank 0 contributes the tokens, the others zeros, to a sum.
    Summed,
    /// Ranks of a pipeline: the last rank embeds. It receives tokens only when it needs them, so
    /// that it can run ahead of rank 0.
    Sent {
        /// On the last rank, for each step whose tokens it has not received yet, the caches that
        /// the tokens belong to.
        under_way: VecDeque<Vec<CacheId>>,
        /// Maximum number of steps whose tokens are in flight, one for each stage in between;
        /// tokens of older steps are received whether they are needed or not.
        most: usize,
    },
}

impl SampledTokens {
    /// Returns the distribution for a pipeline of `num_stages`.
    pub(crate) fn sent(num_stages: usize) -> SampledTokens {
        SampledTokens::Sent { under_way: VecDeque::new(), most: num_stages - 1 }
    }

    /// Distributes a step's tokens, one for each of `caches`; only rank 0 knows them and passes
    /// `own`. Returns the tokens that are known on this rank afterwards.
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
            (SampledTokens::Summed, own) => {
                let own = own.unwrap_or_else(|| vec![0; caches.len()]);
                group.all_sum(&Array::from_slice(&own, &[len])).to_vec()?
            }
            (SampledTokens::Sent { .. }, Some(own)) => {
                group.send(&Array::from_slice(&own, &[len]), last).eval()?;
                own
            }
            (SampledTokens::Sent { under_way, .. }, None) if group.rank() == last => {
                under_way.push_back(caches);
                return Ok(Vec::new());
            }
            (SampledTokens::Sent { .. }, None) => vec![ELSEWHERE; caches.len()],
        };
        Ok(caches.into_iter().zip(tokens).collect())
    }

    /// Distributes tokens that the device computes, u32 `[rows]`, in the graph that computes them: sums
    /// them over the ranks, where all ranks but rank 0 contribute zeros. Ranks of a pipeline receive them
    /// through [`SampledTokens::send_on`].
    pub(crate) fn share_on_device(&self, group: &Group, own: Array) -> Array {
        match self {
            SampledTokens::Summed if 1 < group.size() && own.dim(0) != 0 => group.all_sum(&own),
            SampledTokens::Summed | SampledTokens::Sent { .. } => own,
        }
    }

    /// Sends tokens that the device has computed to the rank of a pipeline that embeds. On rank 0.
    pub(crate) fn send_on(
        &self,
        group: &Group,
        own: &[TokenId],
    ) -> Result<(), jackalope_mlx::Error> {
        let last = group.size() - 1;
        if let SampledTokens::Sent { .. } = self
            && last != 0
        {
            let len = i32::try_from(own.len()).expect("a step has few rows");
            group.send(&Array::from_slice(own, &[len]), last).eval()?;
        }
        Ok(())
    }

    /// Receives tokens in flight, until none of those still in flight is for a cache that
    /// `is_needed` and at most `most` steps are left. Returns the received tokens.
    pub(crate) fn take_in(
        &mut self,
        group: &Group,
        is_needed: impl Fn(CacheId) -> bool,
    ) -> Received {
        let SampledTokens::Sent { under_way, most } = self else { return Ok(Vec::new()) };
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
