//! [`WipingAllocator`]: memory is wiped before it is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::arch::asm;
use std::ptr;

/// An allocator that overwrites memory with zeros before it gives it back to the one inside.
///
/// Types that hold secrets wipe themselves. What passes secrets on does not: messages on their way through a serializer, an HTTP
/// library and a TLS library are copied into buffers that nobody of us owns. With this as the global allocator of a program none of
/// those copies outlives its buffer, whoever made it. It costs one more pass over memory that was in use a moment ago.
#[derive(Clone, Copy, Debug, Default)]
pub struct WipingAllocator<A = System>(pub A);

impl WipingAllocator {
    /// Over the system's allocator.
    #[must_use]
    pub const fn new() -> Self {
        Self(System)
    }
}

/// Overwrites memory, and sees to it that the compiler does not leave that out because nobody reads it afterwards.
///
/// # Safety
///
/// `length` bytes from `start` may be written.
unsafe fn wipe(start: *mut u8, length: usize) {
    // SAFETY: the caller says so. The empty instruction reads, as far as the compiler knows, what the pointer leads to.
    unsafe {
        ptr::write_bytes(start, 0, length);
        asm!("/* {} */", in(reg) start, options(nostack, preserves_flags, readonly));
    }
}

// SAFETY: every call goes to the allocator inside with the arguments that it was made with; before that, memory is written that the
// caller gives up, in the size that it was asked for. `realloc` is the trait's own, which allocates, copies and deallocates: one that
// moved the memory behind this allocator's back would leave what was there.
unsafe impl<A: GlobalAlloc> GlobalAlloc for WipingAllocator<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises, the memory is of this layout and nobody uses it any more.
        unsafe {
            wipe(start, layout.size());
            self.0.dealloc(start, layout);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::slice;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Looks at memory when it is given back, and takes what is not zero for a leak.
    #[derive(Default)]
    struct Watcher {
        given_back: AtomicUsize,
        leaked: AtomicUsize,
    }

    // SAFETY: the system's allocator does the work.
    unsafe impl GlobalAlloc for Watcher {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: as the caller promises.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
            // SAFETY: as the caller promises, and these tests write all of what they allocate.
            let left = unsafe { slice::from_raw_parts(start, layout.size()) };
            self.leaked.fetch_add(left.iter().filter(|byte| **byte != 0).count(), Ordering::Relaxed);
            self.given_back.fetch_add(1, Ordering::Relaxed);
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(start, layout) };
        }
    }

    fn allocate(allocator: &impl GlobalAlloc, layout: Layout) -> *mut u8 {
        // SAFETY: the layouts of these tests are not empty, and what is written was allocated.
        unsafe {
            let start = allocator.alloc(layout);
            assert!(!start.is_null());
            ptr::write_bytes(start, 0xa5, layout.size());
            start
        }
    }

    #[test]
    fn the_watcher_sees_what_was_not_wiped() {
        let watcher = Watcher::default();
        let layout = Layout::new::<[u8; 32]>();
        let start = allocate(&watcher, layout);
        // SAFETY: it was allocated above with this layout.
        unsafe { watcher.dealloc(start, layout) };
        assert_eq!(watcher.leaked.into_inner(), 32);
    }

    #[test]
    fn memory_is_wiped_when_it_is_given_back() {
        let allocator = WipingAllocator(Watcher::default());
        for size in [1, 32, 100, 4096, 1 << 20] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let start = allocate(&allocator, layout);
            // SAFETY: it was allocated above with this layout.
            unsafe { allocator.dealloc(start, layout) };
        }
        assert_eq!((allocator.0.given_back.into_inner(), allocator.0.leaked.into_inner()), (5, 0));
    }

    #[test]
    fn memory_is_wiped_when_it_grows_or_shrinks_and_what_was_in_it_is_kept() {
        let allocator = WipingAllocator(Watcher::default());
        for new_size in [16, 64, 1 << 20] {
            let layout = Layout::from_size_align(32, 8).unwrap();
            let start = allocate(&allocator, layout);
            // SAFETY: it was allocated above with this layout, the new size is not zero, and of the new memory all is written.
            unsafe {
                let moved = allocator.realloc(start, layout, new_size);
                let kept = slice::from_raw_parts(moved, new_size.min(32));
                assert!(kept.iter().all(|byte| *byte == 0xa5));
                ptr::write_bytes(moved, 0xa5, new_size);
                allocator.dealloc(moved, Layout::from_size_align(new_size, 8).unwrap());
            }
        }
        assert_eq!((allocator.0.given_back.into_inner(), allocator.0.leaked.into_inner()), (6, 0));
    }
}
