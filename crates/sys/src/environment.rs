//! The environment of a process that nobody has given one.

use std::io;

/// Sets variables of this process's own environment. Only at its very beginning, while it has one thread: other threads may read
/// the environment at any time.
///
/// # Errors
///
/// When there is more than one thread, or the system does not tell how many there are (`/proc` must be mounted).
pub fn set_environment(variables: &[(&str, &str)]) -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!(
            "the environment is set before there are other threads, and there are {threads}"
        )));
    }
    for (name, value) in variables {
        // SAFETY: this is the only thread, so nobody else reads or writes the environment.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}
