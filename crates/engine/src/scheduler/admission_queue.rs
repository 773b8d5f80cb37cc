//! Orders the waiting requests for admission. Pure and without a clock: it counts admissions.
//!
//! The order is:
//! 1. Lower priority values first.
//! 2. Within a priority, requests that have run before (preempted, or interrupted by a loss of
//!    ranks), the oldest first. They do not use their tenant's turn again.
//! 3. Then one request of each tenant in turn, beginning with the tenant whose last turn is longest
//!    ago; the requests of one tenant by age.
//!
//! Two bounds hold, except for requests that are skipped because another is computing their prefix:
//! - Within a priority, between two turns of a waiting tenant every other tenant has at most one
//!   turn, and one request more is admitted for each time that the oldest request is due.
//! - The oldest waiting request is passed over at most [`PASSED_OVER_MAX`] times, whatever its
//!   priority and tenant. A request that finds `n` waiting is therefore among the next
//!   `(n + 1) * (PASSED_OVER_MAX + 1)` admissions. A request admitted by this rule counts as more
//!   important than any priority from then on, so that others do not preempt it forever.

use std::collections::{HashMap, VecDeque};

use super::sequence::Sequence;
use crate::{RequestId, TenantId};

/// Maximum number of admissions that pass over the oldest waiting request.
pub(crate) const PASSED_OVER_MAX: u32 = 7;

/// Maximum number of tenants with a remembered turn. The tenant whose turn is longest ago is
/// forgotten first; this does not change the order, because that tenant is next in any case.
const TENANTS_MAX: usize = 4096;

/// The state between admissions.
#[derive(Debug, Default)]
pub(super) struct AdmissionQueue {
    /// Number of turns so far.
    num_turns: u64,
    /// The last turn of each tenant.
    last_turns: HashMap<Option<TenantId>, u64>,
    /// Number of admissions since the oldest waiting request was admitted.
    num_passed_over: u32,
}

impl AdmissionQueue {
    /// Returns true if the oldest waiting request goes next, whatever the order is.
    pub(super) fn is_oldest_due(&self) -> bool {
        PASSED_OVER_MAX <= self.num_passed_over
    }

    /// Returns the waiting requests in the order of admission. `waiting` is sorted by age.
    pub(super) fn order(&self, waiting: &VecDeque<Sequence>) -> Vec<RequestId> {
        let mut num_before: HashMap<(i32, Option<TenantId>), usize> = HashMap::new();
        let mut keyed: Vec<((i32, usize, u64), RequestId)> = Vec::with_capacity(waiting.len());
        for sequence in waiting {
            let (importance, tenant) = (sequence.importance(), sequence.request.tenant());
            let (round, last_turn) = if sequence.has_run() {
                (0, 0)
            } else {
                let round = num_before.entry((importance, tenant)).or_insert(0);
                *round += 1;
                (*round, self.last_turns.get(&tenant).copied().unwrap_or(0))
            };
            keyed.push(((importance, round, last_turn), sequence.id));
        }
        // Ids increase with time and are unique, so equal keys are sorted by age.
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, id)| id).collect()
    }

    /// Records an admission.
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
