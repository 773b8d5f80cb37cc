//! Slow constraints do not delay requests without a constraint or with a fast one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use jackalope_engine::{
    AllowedTokens, ConstraintError, EngineConfig, Event, Request, TokenConstraint, TokenMask,
};
use jackalope_protocol::TokenId;

use crate::engine::{Fixture, paced, read_all, seeded, start};

/// Gate at which slow constraints wait.
#[derive(Debug, Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().unwrap();
        drop(self.opened.wait_while(is_open, |is_open| !*is_open).unwrap());
    }
}

/// Allows one token only: the number of tokens before it. Waits for the gate each time from `waits_from` on.
#[derive(Clone, Debug)]
struct Counting {
    gate: Arc<Gate>,
    waits_from: u32,
    num_tokens: u32,
}

impl TokenConstraint for Counting {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        if self.waits_from <= self.num_tokens {
            self.gate.wait();
        }
        *mask = TokenMask::only(&[self.num_tokens], mask.vocab_size());
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        assert_eq!(token, self.num_tokens);
        self.num_tokens += 1;
        Ok(())
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

fn counting(fixture: &Fixture, gate: &Arc<Gate>, waits_from: u32) -> Request {
    let limits = fixture.handle.status().limits.unwrap();
    let options = seeded(vec![1, 2, 3], 20, 7);
    let constraint = Counting { gate: Arc::clone(gate), waits_from, num_tokens: 0 };
    Request::new(options, &limits).unwrap().with_constraint(Box::new(constraint))
}

#[test]
fn a_slow_constraint_delays_only_its_own_request() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(1)));
    let (shut, open) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    open.open();
    let slow: Vec<_> = [0, 5]
        .map(|waits_from| fixture.handle.submit(counting(&fixture, &shut, waits_from)).unwrap())
        .into();
    for seed in 0..3 {
        let fast = fixture.handle.submit(counting(&fixture, &open, 0)).unwrap();
        let plain = fixture.submit(seeded(vec![9; 30], 40, seed)).unwrap();
        assert_eq!(read_all(plain).0.len(), 40);
        assert_eq!(read_all(fast).0, (0..20).collect::<Vec<TokenId>>());
    }
    shut.open();
    for generation in slow {
        assert_eq!(read_all(generation).0, (0..20).collect::<Vec<TokenId>>());
    }
}

#[test]
fn a_request_can_be_left_while_its_constraint_is_asked() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(1)));
    let gate = Arc::new(Gate::default());
    let mut left = fixture.handle.submit(counting(&fixture, &gate, 1)).unwrap();
    while !matches!(left.next_blocking(), Some(Event::Token { .. })) {}
    drop(left);
    assert_eq!(read_all(fixture.submit(seeded(vec![9; 30], 40, 1)).unwrap()).0.len(), 40);
    gate.open();
    let after = fixture.handle.submit(counting(&fixture, &gate, 0)).unwrap();
    assert_eq!(read_all(after).0.len(), 20);
}

/// Computes for this long at each token, or only at the first one.
#[derive(Clone, Debug)]
struct Computing {
    time: Duration,
    is_at_first_only: bool,
    num_tokens: u32,
    num_computed: Arc<AtomicUsize>,
}

impl TokenConstraint for Computing {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        if self.num_tokens == 0 || !self.is_at_first_only {
            let begin = Instant::now();
            while begin.elapsed() < self.time {
                std::hint::spin_loop();
            }
            self.num_computed.fetch_add(1, Ordering::SeqCst);
        }
        *mask = TokenMask::only(&[self.num_tokens], mask.vocab_size());
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, _token: TokenId) -> Result<(), ConstraintError> {
        self.num_tokens += 1;
        Ok(())
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

/// The first answer of most constraints is slow, because it builds tables.
#[test]
fn a_constraint_that_was_slow_once_does_not_wait_for_those_that_always_are() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(1)));
    let limits = fixture.handle.status().limits.unwrap();
    let num_computed = Arc::new(AtomicUsize::new(0));
    let submit = |time: u64, num_tokens: u32, is_at_first_only: bool| {
        let constraint = Computing {
            time: Duration::from_millis(time),
            is_at_first_only,
            num_tokens: 0,
            num_computed: Arc::clone(&num_computed),
        };
        let request = Request::new(seeded(vec![1, 2, 3], num_tokens, 7), &limits).unwrap();
        fixture.handle.submit(request.with_constraint(Box::new(constraint))).unwrap()
    };
    let heavy: Vec<_> = (0..3).map(|_| submit(20, 200, false)).collect();
    while num_computed.load(Ordering::SeqCst) < 6 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let before = num_computed.load(Ordering::SeqCst);
    assert_eq!(read_all(submit(5, 100, true)).0.len(), 100);
    let meanwhile = num_computed.load(Ordering::SeqCst) - before;
    assert!(meanwhile < 50, "{meanwhile} answers of the slow ones during 100 of the other");
    drop(heavy);
}

/// Panics at the fourth token.
#[derive(Clone, Debug, Default)]
struct Panicking {
    num_tokens: u32,
}

impl TokenConstraint for Panicking {
    fn allowed(&mut self, mask: &mut TokenMask) -> Result<AllowedTokens, ConstraintError> {
        assert!(self.num_tokens < 3, "on purpose");
        *mask = TokenMask::only(&[self.num_tokens], mask.vocab_size());
        Ok(AllowedTokens::Masked)
    }

    fn accept(&mut self, _token: TokenId) -> Result<(), ConstraintError> {
        self.num_tokens += 1;
        Ok(())
    }

    fn clone_boxed(&self) -> Box<dyn TokenConstraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_constraint_that_panics_ends_its_own_request_alone() {
    let fixture = start(EngineConfig::default(), paced(Duration::from_millis(1)));
    let limits = fixture.handle.status().limits.unwrap();
    let plain = fixture.submit(seeded(vec![9; 30], 40, 1)).unwrap();
    // More constraints than threads.
    for _ in 0..40 {
        let request = Request::new(seeded(vec![1, 2, 3], 20, 7), &limits).unwrap();
        let request = request.with_constraint(Box::new(Panicking::default()));
        let mut generation = fixture.handle.submit(request).unwrap();
        let message = loop {
            match generation.next_blocking() {
                Some(Event::ConstraintFailed { message, completion_tokens: 3, .. }) => {
                    break message;
                }
                Some(Event::ConstraintFailed { .. } | Event::Finished { .. }) | None => panic!(),
                Some(_) => {}
            }
        };
        assert!(message.contains("this is a bug"), "{message}");
    }
    assert_eq!(read_all(plain).0.len(), 40);
    let counters = fixture.handle.status().counters;
    assert_eq!((counters.failed, counters.finished, counters.cancelled), (40, 1, 0));
}
