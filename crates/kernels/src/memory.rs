//! Memory that is streamed.

/// Asks the system to back the whole 2 MiB pages inside `memory` with huge pages; what it does not know it ignores.
///
/// Reading weights from pages of 4 KiB costs up to a third of the memory's speed. Only pages that are touched *after*
/// the call are sure to become huge, so it belongs between allocating and filling. Contents do not change.
pub fn advise_huge_pages<T>(memory: &[T]) {
    const HUGE_PAGE: usize = 2 << 20;
    let bytes = memory.as_ptr_range();
    let start = (bytes.start as usize).next_multiple_of(HUGE_PAGE);
    let end = bytes.end as usize / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        advise(start, end - start);
    }
}

#[cfg(target_os = "linux")]
fn advise(start: usize, len: usize) {
    use std::ffi::{c_int, c_void};
    /// `asm-generic/mman-common.h` of Linux; the same on every architecture we know.
    const MADV_HUGEPAGE: c_int = 14;
    #[expect(unsafe_code, reason = "the C library that std is linked with")]
    // SAFETY: the signature of POSIX; `HUGEPAGE` is a hint that changes no contents, and the range lies within memory
    // that the caller has borrowed.
    unsafe {
        unsafe extern "C" {
            fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int;
        }
        // A refusal (a kernel without huge pages) leaves small pages, which work too.
        let _ = madvise(start as *mut c_void, len, MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: usize, _len: usize) {}

#[cfg(test)]
mod tests {
    use super::advise_huge_pages;

    #[test]
    fn advice_changes_no_contents() {
        let memory: Vec<u32> = (0..3 << 20).collect();
        advise_huge_pages(&memory);
        advise_huge_pages(&memory[5..7]);
        assert!(memory.iter().enumerate().all(|(idx, word)| *word == idx as u32));
    }
}
