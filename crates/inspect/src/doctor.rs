//! Diagnoses a cluster and recommends commands. Pure: reports go in, findings come out. Every
//! finding has a code from the [`catalogue`], from which `docs/troubleshooting.md` is generated, so
//! that every code can be looked up there.

pub mod catalogue;
mod checks;
mod examination;
mod finding;
mod look;

pub use catalogue::{Entry, Severity};
pub use examination::{Examination, ExaminedNode, Ping};
pub use finding::Finding;
pub use look::{Ask, names};

/// Returns all findings, good and bad: first machine by machine, then those of all machines
/// together.
pub fn examine(examination: &Examination<'_>) -> Vec<Finding> {
    checks::all(examination)
}

/// Recognises known problems in a log; in the order of the catalogue.
pub fn explain(log: &str) -> Vec<&'static Entry> {
    let log = log.to_lowercase();
    catalogue::all().filter(|entry| entry.signs.iter().any(|sign| has_sign(&log, sign))).collect()
}

/// Returns true if `log`, in lowercase, contains the sign. A number at the end of the sign must
/// match a whole number: `errno 6` does not match `errno 60`.
fn has_sign(log: &str, sign: &str) -> bool {
    let sign = sign.to_lowercase();
    let ends_with_digit = sign.ends_with(|it: char| it.is_ascii_digit());
    log.match_indices(&sign).any(|(at, _)| {
        let next = log[at + sign.len()..].chars().next();
        !(ends_with_digit && next.is_some_and(|it| it.is_ascii_digit()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(log: &str) -> Vec<&'static str> {
        explain(log).iter().map(|entry| entry.code).collect()
    }

    #[test]
    fn logs_of_the_stock_transports_are_recognised() {
        for (log, wanted) in [
            ("[jaccl] Changing queue pair to RTR failed with errno 22", "rtr-errno-22"),
            ("[jaccl] Changing queue pair to RTR failed with errno 60", "rtr-errno-60"),
            ("[jaccl] Changing queue pair to RTR failed with errno 16", "rdma-busy"),
            (
                "RuntimeError: [jaccl] Changing queue pair to RTR failed with errno 96",
                "rtr-errno-96",
            ),
            ("ValueError: [jaccl] Couldn't allocate protection domain", "protection-domain"),
            ("ibv_post_send failed with errno 12", "rdma-no-memory"),
            ("[jaccl] Recv failed with errno=57", "connection-stale"),
            ("[jaccl] Recv failed with errno=2", "other-rank-failed"),
            ("[jaccl] Couldn't connect (error: 60)", "connect-timeout"),
            ("connect: No route to host (errno 65)", "no-route"),
            ("BATCH DESYNC at step 22", "batch-desync"),
            ("OSError: [Errno 48] Address already in use", "address-in-use"),
            ("zsh: killed     python server.py\nKilled: 9", "out-of-memory"),
            ("[METAL] Command buffer execution failed: Caused GPU Timeout Error", "gpu-timeout"),
            ("[ring] sum_scatter not supported.", "ring-limits"),
            ("[distributed] Couldn't initialize any backend", "no-backend"),
            ("[jaccl] No IPv4-mapped GID for this device.", "rdma-no-ipv4-gid"),
            ("[jaccl] Could not find device rdma_en9 (3 available)", "rdma-device-missing"),
        ] {
            assert!(codes(log).contains(&wanted), "{log}: {:?}", codes(log));
        }
        assert_eq!(codes("loaded 4 shards in 3.1 s, errno 0"), [] as [&str; 0]);
    }

    #[test]
    fn a_number_is_recognised_whole() {
        assert!(has_sign("failed with errno 6.", "errno 6"));
        assert!(!has_sign("failed with errno 60", "errno 6"));
        assert!(has_sign("errno 60, then errno 6", "errno 6"));
    }
}
