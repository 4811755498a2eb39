//! Whether this process leaves an image of its memory behind when it crashes.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that keeps the kernel from both kinds of images: it is too small for a file (core(5)), and it is the one limit that
/// also holds for images that are piped to a program, of which the kernel ignores every other.
const NO_IMAGE: u64 = 1;

/// Sees to it that the memory of this process, and that of the etcd that it starts, is never written to a file or given to a
/// program: the keys of the node and of its cluster are in it.
pub(crate) fn forbid() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    let limit = Some(maximum.map_or(NO_IMAGE, |maximum| maximum.min(NO_IMAGE)));
    // A limit that is as low as the system allows can always be lowered to.
    let _ = setrlimit(Resource::Core, Rlimit { current: limit, maximum: limit });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_cannot_be_raised_again() {
        forbid();
        let Rlimit { current, maximum } = getrlimit(Resource::Core);
        assert!(current <= Some(NO_IMAGE) && current == maximum, "{current:?}, {maximum:?}");
    }
}
