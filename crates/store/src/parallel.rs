//! Runs the same work on many files in parallel.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `work(idx)` for every index below `num_items`, in order, on `num_threads` threads. After
/// the first failure no further item is started.
pub(super) fn side_by_side<T: Send, E: Send>(
    num_items: usize,
    num_threads: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            if num_items <= idx {
                return Ok(done);
            }
            match work(idx) {
                Ok(result) => done.push((idx, result)),
                Err(err) => {
                    next.fetch_max(num_items, Ordering::Relaxed);
                    return Err(err);
                }
            }
        }
    };
    let parts: Vec<Result<Vec<_>, E>> = std::thread::scope(|scope| {
        let num_threads = num_threads.clamp(1, num_items.max(1));
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().map(|it| it.join().expect("the work does not panic")).collect()
    });
    let mut results = Vec::with_capacity(num_items);
    for part in parts {
        results.extend(part?);
    }
    results.sort_by_key(|(idx, _)| *idx);
    Ok(results.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_and_a_failure_ends_it() {
        for num_threads in [0, 1, 3, 50] {
            let doubled = side_by_side(20, num_threads, |idx| Ok::<_, ()>(2 * idx)).unwrap();
            assert_eq!(doubled, (0..20).map(|idx| 2 * idx).collect::<Vec<_>>());
            let failed =
                side_by_side(20, num_threads, |idx| if idx == 7 { Err(7) } else { Ok(()) });
            assert_eq!(failed, Err(7));
        }
        assert_eq!(side_by_side(0, 4, |_| Ok::<_, ()>(())), Ok(vec![]));
    }
}
