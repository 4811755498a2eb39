//! A panic of a runnable is its own death, and nobody else's: catching it, with its message and place.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// How many [`catch`]es are on the stack of this thread.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
    /// Where the last panic inside them came from.
    static LOCATION: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A panic that was caught.
#[derive(Debug)]
pub(crate) struct Panic {
    message: String,
    location: Option<String>,
}

impl std::fmt::Display for Panic {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.location {
            Some(location) => write!(formatter, "panicked at {location}: {}", self.message),
            None => write!(formatter, "panicked: {}", self.message),
        }
    }
}

/// Calls `function`; a panic of it is returned. With the hook installed, its place is known and it is not printed.
pub(crate) fn catch<T>(function: impl FnOnce() -> T) -> Result<T, Panic> {
    // One that the runnable has caught by itself may have left its place. While this thread unwinds the place belongs
    // to somebody further out.
    if !std::thread::panicking() {
        LOCATION.set(None);
    }
    CATCHING.set(CATCHING.get() + 1);
    let result = panic::catch_unwind(AssertUnwindSafe(function));
    CATCHING.set(CATCHING.get() - 1);
    result.map_err(|payload| {
        let location = LOCATION.with_borrow_mut(Option::take);
        let message = message(&*payload);
        // What was thrown may panic again when it is dropped.
        if panic::catch_unwind(AssertUnwindSafe(|| drop(payload))).is_err() {
            LOCATION.set(None);
        }
        Panic { message, location }
    })
}

fn message(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).into()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a value that is not text".into()
    }
}

/// Puts a hook before that of the process which notes the place of panics that are caught here, and leaves all others
/// to it.
pub(crate) fn install_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info: &PanicHookInfo<'_>| {
            if CATCHING.get() > 0 {
                let location = info.location().map(ToString::to_string);
                LOCATION.set(location);
            } else {
                previous(info);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_and_place_are_kept() {
        install_hook();
        let line = line!() + 1;
        let panic = catch(|| panic!("broken {}", 7)).map(|(): ()| ()).unwrap_err();
        let text = panic.to_string();
        assert!(text.starts_with("panicked at crates/supervisor/src/panics.rs:"), "{text}");
        assert!(text.contains(&format!(":{line}:")), "{text}");
        assert!(text.ends_with(": broken 7"), "{text}");
    }

    #[test]
    fn the_place_of_a_panic_that_was_caught_inside_is_not_told_of_another() {
        install_hook();
        let panic = catch(|| {
            let inner = panic::catch_unwind(|| panic!("inner"));
            panic::resume_unwind(inner.unwrap_err());
        });
        assert!(panic.map(|(): ()| ()).unwrap_err().to_string().contains("panics.rs"));
        let panic = catch(|| panic::resume_unwind(Box::new("thrown"))).map(|(): ()| ()).unwrap_err();
        assert_eq!(panic.to_string(), "panicked: thrown");
    }

    #[test]
    fn a_thrown_value_that_panics_when_dropped_is_harmless() {
        install_hook();
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("again");
            }
        }
        let panic = catch(|| panic::resume_unwind(Box::new(Bomb))).map(|(): ()| ()).unwrap_err();
        assert_eq!(panic.to_string(), "panicked: a value that is not text");
    }
}
