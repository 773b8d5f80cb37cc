//! Tests of the binding with the real libmlx, on the CPU.
#![expect(clippy::unwrap_used, reason = "a test's helpers fail as its tests do")]

mod arrays;
mod compiled;
mod custom;
mod fused;
mod group;
mod ops;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// MLX's memory limits wait for every stream of the process and report what failed on any of them,
/// so a test that sets them must not run beside a test whose work fails on purpose.
static FAILURES: RwLock<()> = RwLock::new(());

/// Lock for changing the process's panic hook.
static PANIC_HOOK: Mutex<()> = Mutex::new(());

/// Lock for tests whose evaluations fail. Panics of MLX's own threads, which have no name, are not printed
/// from then on: there are ten thousand of them on purpose.
fn expecting_failures() -> RwLockReadGuard<'static, ()> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let _turn = PANIC_HOOK.lock().unwrap_or_else(PoisonError::into_inner);
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name().is_some() {
                print(panic);
            }
        }));
    });
    FAILURES.read().unwrap_or_else(PoisonError::into_inner)
}

/// Lock for tests that use every stream.
fn without_failures() -> RwLockWriteGuard<'static, ()> {
    FAILURES.write().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the message and the line of the panic that `build` causes.
fn panic_of(build: impl FnOnce()) -> (String, u32) {
    static LAST: Mutex<Option<u32>> = Mutex::new(None);
    let _turn = PANIC_HOOK.lock().unwrap_or_else(PoisonError::into_inner);
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
