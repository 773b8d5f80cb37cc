//! Chooses the models to evict for another one. Pure functions.

use tokio::time::Instant;

use super::loader::{MachineBytes, Shortage};

/// A model that currently takes memory.
#[derive(Clone, Debug)]
pub(super) struct Resident {
    /// Index of the model in the registry.
    pub(super) idx: usize,
    pub(super) need: MachineBytes,
    pub(super) last_used: Instant,
    pub(super) is_pinned: bool,
    /// Whether requests use the model or wait for it, or it is not fully loaded, or it is being
    /// unloaded.
    pub(super) is_busy: bool,
}

/// What has to happen before a model can be loaded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum EvictionPlan {
    /// Nothing: there is enough memory.
    Enough,
    /// These models, which are idle, have to be unloaded.
    After(Vec<usize>),
    /// Some of these models, which are in use, have to become idle first.
    Behind(Vec<usize>),
    /// The model does not fit beside these pinned models.
    BesidePinned(Vec<usize>, Shortage),
    /// The model never fits.
    Never(Shortage),
}

/// Chooses the models to evict so that `need` fits beside the others: the least recently used ones
/// first, and no more of them than necessary.
pub(super) fn plan_eviction(
    need: &MachineBytes,
    budget: &MachineBytes,
    all: &[Resident],
) -> EvictionPlan {
    let beyond = |stays: &dyn Fn(&Resident) -> bool| {
        let mut sum = need.clone();
        all.iter().filter(|it| stays(it)).for_each(|it| sum.add(&it.need));
        sum.beyond(budget)
    };
    let of = |is: &dyn Fn(&Resident) -> bool| -> Vec<usize> {
        all.iter().filter(|it| is(it)).map(|it| it.idx).collect()
    };
    if let Some(shortage) = beyond(&|_| false) {
        return EvictionPlan::Never(shortage);
    }
    if let Some(shortage) = beyond(&|it| it.is_pinned) {
        return EvictionPlan::BesidePinned(of(&|it| it.is_pinned), shortage);
    }
    if beyond(&|it| it.is_pinned || it.is_busy).is_some() {
        return EvictionPlan::Behind(of(&|it| it.is_busy && !it.is_pinned));
    }
    let mut idle: Vec<&Resident> = all.iter().filter(|it| !it.is_pinned && !it.is_busy).collect();
    idle.sort_by_key(|it| it.last_used);
    let mut goes: Vec<usize> = Vec::new();
    for it in &idle {
        if beyond(&|it| !goes.contains(&it.idx)).is_none() {
            break;
        }
        goes.push(it.idx);
    }
    // A model chosen earlier may turn out to be unnecessary, for example because it takes memory
    // only on a machine that is not short of it; such models stay.
    for idx in goes.clone().into_iter().rev() {
        if beyond(&|it| it.idx == idx || !goes.contains(&it.idx)).is_none() {
            goes.retain(|&it| it != idx);
        }
    }
    if goes.is_empty() { EvictionPlan::Enough } else { EvictionPlan::After(goes) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn bytes(machines: &[(&str, u64)]) -> MachineBytes {
        MachineBytes(machines.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect())
    }

    /// Models on machine `a`; the first one was used last.
    fn residents(takes: &[u64]) -> Vec<Resident> {
        let now = Instant::now() + Duration::from_secs(1000);
        let resident = |(idx, &take): (usize, &u64)| Resident {
            idx,
            need: bytes(&[("a", take)]),
            last_used: now - Duration::from_secs(idx as u64),
            is_pinned: false,
            is_busy: false,
        };
        takes.iter().enumerate().map(resident).collect()
    }

    #[test]
    fn the_least_recently_used_go_first_and_no_more_than_needed() {
        let budget = bytes(&[("a", 10)]);
        let plan =
            |need, takes: &[u64]| plan_eviction(&bytes(&[("a", need)]), &budget, &residents(takes));
        assert_eq!(plan(4, &[3, 3]), EvictionPlan::Enough);
        assert_eq!(plan(10, &[]), EvictionPlan::Enough);
        assert_eq!(plan(5, &[3, 3]), EvictionPlan::After(vec![1]));
        assert_eq!(plan(9, &[3, 3]), EvictionPlan::After(vec![1, 0]));
        // Evicting only the oldest is not enough; once the next one is evicted too, the oldest can
        // stay.
        assert_eq!(plan(5, &[2, 6, 1]), EvictionPlan::After(vec![1]));
        let shortage = Shortage { machine: "a".to_owned(), needed_bytes: 11, budget_bytes: 10 };
        assert_eq!(plan(11, &[3]), EvictionPlan::Never(shortage));
        assert_eq!(
            plan_eviction(&bytes(&[("b", 99)]), &budget, &residents(&[10])),
            EvictionPlan::Enough,
            "a machine without a budget is not bounded"
        );
    }

    #[test]
    fn what_is_pinned_stays_and_what_is_used_is_waited_for() {
        let budget = bytes(&[("a", 10)]);
        let mut all = residents(&[4, 4]);
        all[1].is_pinned = true;
        let need = |it| bytes(&[("a", it)]);
        assert_eq!(plan_eviction(&need(5), &budget, &all), EvictionPlan::After(vec![0]));
        let shortage = Shortage { machine: "a".to_owned(), needed_bytes: 11, budget_bytes: 10 };
        assert_eq!(
            plan_eviction(&need(7), &budget, &all),
            EvictionPlan::BesidePinned(vec![1], shortage)
        );
        all[0].is_busy = true;
        assert_eq!(plan_eviction(&need(5), &budget, &all), EvictionPlan::Behind(vec![0]));
        assert_eq!(plan_eviction(&need(2), &budget, &all), EvictionPlan::Enough);
    }

    #[test]
    fn every_machine_has_to_have_room() {
        let budget = bytes(&[("a", 10), ("b", 10)]);
        let mut all = residents(&[1, 1]);
        all[0].need = bytes(&[("b", 8)]);
        // The older model takes no memory on the machine that is short of it.
        assert_eq!(
            plan_eviction(&bytes(&[("a", 5), ("b", 5)]), &budget, &all),
            EvictionPlan::After(vec![0])
        );
    }
}
