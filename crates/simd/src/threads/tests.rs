//! The pool without kernels: who does what, and what happens when something goes wrong.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::{SPIN, Threads};

#[test]
fn every_item_is_done_exactly_once() {
    for count in 0..5 {
        let threads = Threads::new(count);
        assert_eq!(threads.count(), count.max(1));
        for len in [0, 1, 2, 3, 100] {
            let done: Vec<AtomicUsize> = (0..len).map(|_| AtomicUsize::new(0)).collect();
            threads.for_each((0..len).collect(), |item: usize| {
                done[item].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
        }
    }
}

#[test]
fn all_threads_work_at_the_same_time() {
    let threads = Threads::new(3);
    // Only three threads at once can pass.
    let barrier = Barrier::new(3);
    for _ in 0..20 {
        threads.for_each(vec![(); 3], |()| {
            barrier.wait();
        });
    }
}

#[test]
fn workers_wake_after_having_slept() {
    let threads = Threads::new(3);
    let barrier = Barrier::new(3);
    for _ in 0..5 {
        thread::park_timeout(SPIN * 20);
        threads.for_each(vec![(); 3], |()| {
            barrier.wait();
        });
    }
}

#[test]
fn many_short_jobs_in_a_row_lose_nothing() {
    let threads = Threads::new(4);
    let total = AtomicUsize::new(0);
    for _ in 0..20_000 {
        threads.for_each(vec![1, 2, 3, 4], |item| {
            total.fetch_add(item, Ordering::Relaxed);
        });
    }
    assert_eq!(total.load(Ordering::Relaxed), 200_000);
}

#[test]
fn a_panic_comes_out_at_the_caller_and_the_pool_lives_on() {
    let threads = Threads::new(3);
    let barrier = Barrier::new(3);
    for panicking in 0..3 {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            threads.for_each(vec![0, 1, 2], |item| {
                barrier.wait();
                assert!(item != panicking, "item {item} went wrong");
            });
        }));
        let message = *outcome.expect_err("a panic").downcast::<String>().expect("its message");
        assert_eq!(message, format!("item {panicking} went wrong"));
        // The next job again needs all threads.
        threads.for_each(vec![(); 3], |()| {
            barrier.wait();
        });
    }
}

#[test]
fn several_callers_and_nested_calls_all_finish() {
    let threads = Threads::new(3);
    let total = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    threads.for_each(vec![1; 5], |_| {
                        threads.for_each(vec![1; 3], |item| {
                            total.fetch_add(item, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 3 * 200 * 5 * 3);
}

#[test]
fn borrowed_items_may_be_changed() {
    let threads = Threads::new(2);
    let mut values = vec![0; 1000];
    let items: Vec<(usize, &mut [i32])> = values.chunks_mut(7).enumerate().collect();
    threads.for_each(items, |(chunk, values)| {
        for (offset, value) in values.iter_mut().enumerate() {
            *value = (chunk * 7 + offset) as i32;
        }
    });
    assert!(values.iter().enumerate().all(|(idx, value)| *value == idx as i32));
}
