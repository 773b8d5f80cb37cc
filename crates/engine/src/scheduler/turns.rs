//! Whose turn it is among the requests that wait. Pure, and without a clock: it counts admissions.
//!
//! In this order:
//! 1. Lower priority values first.
//! 2. Of one priority, those that have run before (preempted, or interrupted by a loss of ranks): their
//!    turn is spent already. Oldest first.
//! 3. Then one request of each tenant in turn, beginning with the tenant whose last turn is longest
//!    ago; a tenant's own requests by age.
//!
//! Two bounds hold, apart from requests that are passed over because another is computing their prefix:
//! - Of one priority, between two turns of a tenant that waits every other tenant has at most one, and
//!   one request more goes before it for each time the oldest is due.
//! - The oldest request that waits is passed over [`PASSED_OVER_MAX`] times at most, whatever its
//!   priority and tenant. So a request that finds `n` waiting is among the next
//!   `(n + 1) * (PASSED_OVER_MAX + 1)` that are admitted. Whoever was admitted by this rule counts as
//!   more important than any priority from then on, so that the important do not preempt it for ever.

use std::collections::{HashMap, VecDeque};

use super::sequence::Sequence;
use crate::planted::{Bug, Planted};
use crate::{RequestId, TenantId};

/// Admissions of others that the oldest request waits for at most.
pub(crate) const PASSED_OVER_MAX: u32 = 7;

/// Tenants remembered. The one whose turn is longest ago is forgotten first, which does not change the
/// order: it would be the next in any case.
const TENANTS_MAX: usize = 4096;

/// What has to be remembered between admissions.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Admissions so far.
    num_turns: u64,
    /// The last turn of each tenant.
    last_turns: HashMap<Option<TenantId>, u64>,
    /// Admissions since the oldest of those that waited was admitted.
    num_passed_over: u32,
}

impl Turns {
    /// True if the oldest request that waits goes next, whoever else there is.
    pub(super) fn is_oldest_due(&self, planted: Planted) -> bool {
        PASSED_OVER_MAX <= self.num_passed_over && !planted.has(Bug::NeverAged)
    }

    /// Everyone who waits, in the order of their turns. `waiting` is by age.
    pub(super) fn order(&self, waiting: &VecDeque<Sequence>, planted: Planted) -> Vec<RequestId> {
        let mut num_before: HashMap<(i32, Option<TenantId>), usize> = HashMap::new();
        let mut keyed: Vec<((i32, usize, u64), RequestId)> = Vec::with_capacity(waiting.len());
        for sequence in waiting {
            let (importance, tenant) = (sequence.importance(), sequence.request.tenant());
            let (round, last_turn) = if sequence.has_run() || planted.has(Bug::TenantsIgnored) {
                (0, 0)
            } else {
                let round = num_before.entry((importance, tenant)).or_insert(0);
                *round += 1;
                (*round, self.last_turns.get(&tenant).copied().unwrap_or(0))
            };
            keyed.push(((importance, round, last_turn), sequence.id));
        }
        // Ids are ages, and no id occurs twice.
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, id)| id).collect()
    }

    /// Counts an admission.
    pub(super) fn note(&mut self, tenant: Option<TenantId>, has_run: bool, is_oldest: bool) {
        self.num_passed_over = if is_oldest { 0 } else { self.num_passed_over.saturating_add(1) };
        if has_run {
            return;
        }
        self.num_turns += 1;
        self.last_turns.insert(tenant, self.num_turns);
        if TENANTS_MAX < self.last_turns.len() {
            let first = self.last_turns.iter().min_by_key(|(_, turn)| **turn);
            let first = first.map(|(tenant, _)| *tenant).expect("there are more than the limit");
            self.last_turns.remove(&first);
        }
    }
}
