//! Tests of the binding with the real libmlx, on the CPU.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its tests do")]

mod arrays;
mod custom;
mod fused;
mod group;
mod ops;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// MLX's memory limits wait for every stream of the process and report what failed on any of them,
/// so a test that sets them must not run beside a test whose work fails on purpose.
static FAILURES: RwLock<()> = RwLock::new(());

/// Lock for tests whose evaluations fail.
fn expecting_failures() -> RwLockReadGuard<'static, ()> {
    FAILURES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lock for tests that use every stream.
fn without_failures() -> RwLockWriteGuard<'static, ()> {
    FAILURES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the message and the line of the panic that `build` causes.
fn panic_of(build: impl FnOnce()) -> (String, u32) {
    static LAST: Mutex<Option<u32>> = Mutex::new(None);
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let hook = std::panic::take_hook();
    let thread = std::thread::current().id();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().id() == thread {
            *LAST.lock().unwrap() = panic.location().map(std::panic::Location::line);
        }
    }));
    let caught = catch_unwind(AssertUnwindSafe(build));
    std::panic::set_hook(hook);
    let payload = caught.expect_err("it should have panicked");
    let message = payload.downcast_ref::<String>().expect("a formatted panic").clone();
    let line = LAST.lock().unwrap().take().expect("a panic has a location");
    (message, line)
}
