//! Remembers which ranks an outage has lost, and decides which loss is reported as its cause.

use crate::Failure;

/// The losses since the group was last up.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Losses of ranks that are not back, in their order, one for each machine.
    lost: Vec<Failure>,
}

impl Outage {
    /// Records a loss. The first one of a machine stays while the machine is not back, because the
    /// later ones are often its consequences.
    pub(super) fn note_loss(&mut self, failure: &Failure) {
        let is_known = self.lost.iter().any(|lost| is_same_machine(lost, failure));
        if failure.rank.is_some() && !is_known {
            self.lost.push(failure.clone());
        }
    }

    /// Records that a rank runs again. `host` is empty if all ranks are on one machine.
    pub(super) fn note_back(&mut self, rank: usize, host: &str) {
        self.lost.retain(|lost| match &lost.host {
            Some(lost_host) => lost_host != host,
            None => lost.rank != Some(rank),
        });
    }

    /// Records that the group is up.
    pub(super) fn end(&mut self) {
        self.lost.clear();
    }

    /// Returns the cause to report of an outage that does not end: the loss of the machine that was
    /// lost first and is not back. `unreachable` says in more detail why ranks cannot be replaced
    /// now; `last` is the latest loss.
    pub(super) fn cause(
        &self,
        unreachable: Vec<Failure>,
        last: Option<Failure>,
    ) -> Option<Failure> {
        let first = self.lost.first();
        let explains = |it: &Failure| {
            it.rank.is_none() || first.is_none_or(|first| is_same_machine(first, it))
        };
        let detail = unreachable.into_iter().find(explains);
        detail.or_else(|| first.cloned()).or(last)
    }
}

/// Whether two failures are of the same machine, or of the same rank if there is only one machine.
fn is_same_machine(a: &Failure, b: &Failure) -> bool {
    match (&a.host, &b.host) {
        (Some(a), Some(b)) => a == b,
        (None, None) => a.rank == b.rank,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use jackalope_protocol::Phase;

    use super::*;

    fn failure(rank: impl Into<Option<usize>>, host: &str, message: &str) -> Failure {
        let host = Some(host.to_owned()).filter(|it| !it.is_empty());
        let (message, last_words) = (message.to_owned(), String::new());
        Failure { rank: rank.into(), host, phase: Phase::Loading, message, last_words }
    }

    fn outage(losses: &[&Failure]) -> Outage {
        let mut outage = Outage::default();
        losses.iter().for_each(|it| outage.note_loss(it));
        outage
    }

    #[test]
    fn the_machine_that_was_lost_first_is_the_cause_in_whatever_order_others_follow() {
        let away = failure(1, "host-b", "it gave no sign of life");
        // After the first loss the ranks are assigned to other machines, and get other numbers.
        let consequences = [
            failure(0, "host-a", "the process ended"),
            failure(1, "host-c", "the process ended"),
            failure(None, "", "a rank did not join"),
        ];
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut outage = outage(&[&away]);
            let mut last = away.clone();
            for idx in order {
                last = consequences[idx].clone();
                outage.note_loss(&last);
                assert_eq!(outage.cause(Vec::new(), Some(last.clone())), Some(away.clone()));
            }
            // These come back up again and again; the first one does not.
            outage.note_back(0, "host-a");
            outage.note_back(1, "host-c");
            assert_eq!(outage.cause(Vec::new(), Some(last)), Some(away.clone()));
        }
    }

    #[test]
    fn a_machine_that_is_back_is_no_cause_any_more() {
        let (first, second) = (failure(0, "a", "killed"), failure(1, "b", "killed"));
        let mut outage = outage(&[&first, &second]);
        outage.note_back(0, "a");
        assert_eq!(outage.cause(Vec::new(), Some(first.clone())), Some(second.clone()));
        outage.note_loss(&first);
        assert_eq!(outage.cause(Vec::new(), Some(first.clone())), Some(second));
        outage.end();
        assert_eq!(outage.cause(Vec::new(), Some(first.clone())), Some(first));
        assert_eq!(outage.cause(Vec::new(), None), None);
    }

    #[test]
    fn ranks_on_one_machine_are_told_apart_by_their_numbers() {
        let (first, second) = (failure(1, "", "killed"), failure(0, "", "killed"));
        let mut outage = outage(&[&first, &second]);
        outage.note_back(0, "");
        assert_eq!(outage.cause(Vec::new(), Some(second.clone())), Some(first));
        outage.note_back(1, "");
        assert_eq!(outage.cause(Vec::new(), Some(second.clone())), Some(second));
    }

    #[test]
    fn what_is_known_of_the_first_machine_now_says_more_than_its_loss() {
        let away = failure(2, "host-c", "it gave no sign of life");
        let unreachable = |rank, host| failure(rank, host, "its machine cannot be reached");
        let both = || vec![unreachable(1, "host-b"), unreachable(2, "host-c")];
        let cause = outage(&[&away]).cause(both(), None);
        assert_eq!(cause, Some(unreachable(2, "host-c")));
        let other = vec![unreachable(1, "host-b")];
        assert_eq!(outage(&[&away]).cause(other, None), Some(away.clone()));
        assert_eq!(Outage::default().cause(both(), Some(away.clone())), Some(both()[0].clone()));
        // A connection between two machines explains why any rank is lost.
        let link = failure(None, "", "host-a and host-b do not reach each other");
        assert_eq!(outage(&[&away]).cause(vec![link.clone()], Some(away.clone())), Some(link));
    }
}
