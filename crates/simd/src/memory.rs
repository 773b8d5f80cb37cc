//! Huge pages for streamed memory.
//!
//! Reading weights from pages of 4 KiB costs up to half of the memory bandwidth. The hints do not
//! change contents. A system that does not support them returns an error and keeps small pages,
//! which work as well.

use std::ops::Range;

/// Size of a huge page in bytes, on every supported machine.
const HUGE_PAGE: usize = 2 << 20;

/// Requests huge pages for `memory`, which take effect when it is first touched: call this between
/// allocating a large buffer and filling it.
pub fn advise_huge_pages<T>(memory: &[T]) {
    /// `asm-generic/mman-common.h` of Linux.
    const MADV_HUGEPAGE: i32 = 14;
    let bytes = addresses(memory);
    let start = bytes.start.next_multiple_of(HUGE_PAGE);
    let end = bytes.end / HUGE_PAGE * HUGE_PAGE;
    if start < end {
        advise(start, end - start, MADV_HUGEPAGE);
    }
}

/// Returns the addresses of a buffer's bytes.
pub fn addresses<T>(memory: &[T]) -> Range<usize> {
    let bytes = memory.as_ptr_range();
    bytes.start as usize..bytes.end as usize
}

/// Moves filled buffers, given by their addresses, and whatever lies between them, into huge pages. Returns the number of bytes that are in huge
/// pages afterwards, which is at most the size of all huge pages that the buffers touch.
///
/// Meant for many buffers that are each too small or too badly aligned to have huge pages of their own, as an allocator
/// puts the tensors of a model side by side. Copies the buffers once; needs Linux 6.1. Other threads may use the buffers
/// meanwhile. Addresses whose memory was freed are passed over, or their new owner's memory is moved instead.
pub fn move_into_huge_pages(buffers: impl IntoIterator<Item = Range<usize>>) -> usize {
    /// `asm-generic/mman-common.h` of Linux.
    const MADV_COLLAPSE: i32 = 25;
    let mut pages: Vec<usize> = Vec::new();
    for buffer in buffers {
        pages.extend(buffer.start / HUGE_PAGE..buffer.end.div_ceil(HUGE_PAGE));
    }
    pages.sort_unstable();
    pages.dedup();
    // One page at a time, because a page that extends beyond the mapping fails the whole call.
    pages.retain(|page| advise(page * HUGE_PAGE, HUGE_PAGE, MADV_COLLAPSE));
    pages.len() * HUGE_PAGE
}

/// Returns whether the system accepted the hint.
#[cfg(target_os = "linux")]
fn advise(start: usize, len: usize, advice: i32) -> bool {
    use std::ffi::{c_int, c_void};
    #[expect(unsafe_code, reason = "the C library that std is linked with")]
    // SAFETY: the signature of POSIX; both hints that this module gives leave the contents of memory as they are,
    // and fail for memory that is not mapped.
    unsafe {
        unsafe extern "C" {
            fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int;
        }
        madvise(start as *mut c_void, len, advice) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn advise(_start: usize, _len: usize, _advice: i32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::{HUGE_PAGE, addresses, advise_huge_pages, move_into_huge_pages};

    #[test]
    fn advice_changes_no_contents() {
        let memory: Vec<u32> = (0..3 << 20).collect();
        advise_huge_pages(&memory);
        advise_huge_pages(&memory[5..7]);
        assert!(memory.iter().enumerate().all(|(idx, word)| *word == idx as u32));
    }

    #[test]
    fn moving_changes_no_contents() {
        let buffers: Vec<Vec<u8>> = (0..40).map(|value| vec![value; 700_000]).collect();
        let moved = move_into_huge_pages(buffers.iter().map(|buffer| addresses(buffer)));
        assert!(moved.is_multiple_of(HUGE_PAGE) && moved <= 80 * HUGE_PAGE);
        for (value, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| usize::from(*byte) == value));
        }
        assert_eq!(move_into_huge_pages([]), 0);
    }
}
