//! Finds the machines that can compute together: a group needs a link between any two of its ranks.
//! Pure.

use std::cmp::Reverse;

/// Maximum number of members for which every subset is tried.
const EXHAUSTIVE_MAX: usize = 12;

/// A hostfile position at which a rank could run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Candidate {
    /// Position in the hostfile.
    pub position: usize,
    /// Memory that a rank there may take.
    pub usable_bytes: u64,
    /// Whether a rank computes at this position now.
    pub computes: bool,
}

/// Members that all reach each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ReachableGroup {
    /// Hostfile positions of the members, ascending.
    pub positions: Vec<usize>,
    /// Total usable memory of the members in bytes.
    pub usable_bytes: u64,
    /// Number of members that compute now.
    pub num_computing: usize,
}

impl ReachableGroup {
    fn of(members: impl Iterator<Item = Candidate>) -> ReachableGroup {
        let mut group = ReachableGroup { positions: Vec::new(), usable_bytes: 0, num_computing: 0 };
        for member in members {
            group.positions.push(member.position);
            group.usable_bytes += member.usable_bytes;
            group.num_computing += usize::from(member.computes);
        }
        group.positions.sort_unstable();
        group
    }
}

/// Returns every group of `members` in which all `reach` each other; `reach` must be symmetric. The
/// group with the most memory comes first; ties go to the group with more members that compute now,
/// then to the one that comes first in the hostfile. For more than twelve members it returns one
/// group only, found by dropping the members that reach the fewest others.
pub fn groups(members: &[Candidate], reach: impl Fn(usize, usize) -> bool) -> Vec<ReachableGroup> {
    if EXHAUSTIVE_MAX < members.len() {
        return vec![without_the_isolated(members, reach)];
    }
    let reached: Vec<u32> = members
        .iter()
        .map(|one| {
            let peers = members.iter().enumerate();
            let peers = peers.filter(|(_, peer)| {
                peer.position == one.position || reach(one.position, peer.position)
            });
            peers.fold(0, |set, (idx, _)| set | 1 << idx)
        })
        .collect();
    let is_in = |set: u32, idx: usize| set >> idx & 1 == 1;
    let all_reach =
        |set: &u32| (0..members.len()).all(|idx| !is_in(*set, idx) || *set & !reached[idx] == 0);
    let mut groups: Vec<ReachableGroup> = (1..1_u32 << members.len())
        .filter(all_reach)
        .map(|set| {
            let chosen = members.iter().enumerate().filter(|(idx, _)| is_in(set, *idx));
            ReachableGroup::of(chosen.map(|(_, member)| *member))
        })
        .collect();
    groups.sort_by(|a, b| {
        let rank = |it: &ReachableGroup| (Reverse(it.usable_bytes), Reverse(it.num_computing));
        rank(a).cmp(&rank(b)).then_with(|| a.positions.cmp(&b.positions))
    });
    groups
}

/// Drops the member that reaches the fewest others until all remaining members reach each other.
fn without_the_isolated(
    members: &[Candidate],
    reach: impl Fn(usize, usize) -> bool,
) -> ReachableGroup {
    let mut left = members.to_vec();
    loop {
        let num_unreached = |one: &Candidate| {
            let peers = left.iter().filter(|peer| peer.position != one.position);
            peers.filter(|peer| !reach(one.position, peer.position)).count()
        };
        let worst = left.iter().enumerate().max_by_key(|(_, it)| {
            (num_unreached(it), !it.computes, Reverse(it.usable_bytes), it.position)
        });
        match worst {
            Some((idx, it)) if 0 < num_unreached(it) => left.remove(idx),
            _ => return ReachableGroup::of(left.into_iter()),
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(bytes: &[u64], computing: &[usize]) -> Vec<Candidate> {
        let member = |(position, &usable_bytes)| Candidate {
            position,
            usable_bytes,
            computes: computing.contains(&position),
        };
        bytes.iter().enumerate().map(member).collect()
    }

    /// Every pair reaches each other except these.
    fn without(cut: &[(usize, usize)]) -> impl Fn(usize, usize) -> bool {
        let cut = cut.to_vec();
        move |a, b| !cut.contains(&(a, b)) && !cut.contains(&(b, a))
    }

    fn best(members: &[Candidate], cut: &[(usize, usize)]) -> Vec<usize> {
        groups(members, without(cut)).remove(0).positions
    }

    #[test]
    fn one_of_two_that_do_not_reach_each_other_is_left_out() {
        let equal = members(&[4, 4, 4], &[0, 1, 2]);
        assert_eq!(best(&equal, &[]), [0, 1, 2]);
        assert_eq!(best(&equal, &[(1, 2)]), [0, 1], "of equals the later one");
        assert_eq!(best(&equal, &[(0, 1), (0, 2)]), [1, 2], "not even the first is sacred");
        assert_eq!(best(&members(&[4, 4, 5], &[0, 1]), &[(1, 2)]), [0, 2], "memory comes first");
        let taken_back = members(&[4, 4, 4], &[0, 2]);
        assert_eq!(best(&taken_back, &[(1, 2)]), [0, 2], "those that compute stay");
        assert_eq!(best(&equal, &[(0, 1), (0, 2), (1, 2)]), [0]);
        assert!(groups(&[], without(&[])).is_empty());
    }

    #[test]
    fn smaller_groups_follow_for_the_case_that_the_best_does_not_fit() {
        let all = groups(&members(&[2, 3, 4], &[]), without(&[(1, 2)]));
        let positions: Vec<Vec<usize>> = all.into_iter().map(|it| it.positions).collect();
        assert_eq!(positions, [vec![0, 2], vec![0, 1], vec![2], vec![1], vec![0]]);
    }

    proptest! {
        #[test]
        fn every_group_reaches_itself_and_none_that_does_is_missing(
            bytes in prop::collection::vec(1_u64..4, 1..8),
            cuts in prop::collection::vec((0_usize..8, 0_usize..8), 0..10),
        ) {
            let reach = without(&cuts);
            let members = members(&bytes, &[0]);
            let found = groups(&members, &reach);
            for group in &found {
                for a in &group.positions {
                    for b in &group.positions {
                        prop_assert!(a == b || reach(*a, *b));
                    }
                }
            }
            prop_assert!(found.is_sorted_by_key(|it| Reverse(it.usable_bytes)));
            // Cross-check: builds the groups by adding one member at a time.
            let mut grown: Vec<Vec<usize>> = vec![Vec::new()];
            for position in 0..bytes.len() {
                let more: Vec<Vec<usize>> = grown
                    .iter()
                    .filter(|group| group.iter().all(|it| reach(*it, position)))
                    .map(|group| group.iter().copied().chain([position]).collect())
                    .collect();
                grown.extend(more);
            }
            prop_assert_eq!(found.len(), grown.len() - 1);
        }

        #[test]
        fn of_many_machines_a_group_is_left_that_reaches_itself(
            num in 13_usize..20, cuts in prop::collection::vec((0_usize..20, 0_usize..20), 0..12),
        ) {
            let reach = without(&cuts);
            let found = groups(&members(&vec![1; num], &[]), &reach);
            prop_assert_eq!(found.len(), 1);
            let positions = &found[0].positions;
            prop_assert!(positions.iter().all(|a| positions.iter().all(|b| a == b || reach(*a, *b))));
            prop_assert!(num - cuts.len().min(num - 1) <= positions.len());
        }
    }
}
