//! Fault points: named places where a test ends the process, exactly there, as a power cut or SIGKILL would.
//!
//! Each durable write and each etcd transaction passes through one function, and each call site gives that function a
//! name. The function calls [`point`] before and after every step that makes something durable. Without the feature
//! `fault-points` a point compiles to nothing.
//!
//! With the feature, two environment variables steer it, read once:
//!
//! | variable | meaning |
//! |---|---|
//! | `POLIS_FAULT` | `NAME` or `NAME#K`: when the point NAME is passed for the K-th time (default 1), the process sends itself SIGKILL |
//! | `POLIS_FAULT_LOG` | a file to which each passed point is appended as one line by one write call, so that a system call trace shows points and system calls in their order |

#![forbid(unsafe_code)]

/// Marks the place `site/step`, for example `journal/enrolled/renamed`. Does not return if this is the point at which
/// the test wants the process to die.
#[inline]
pub fn point(site: &str, step: &str) {
    #[cfg(feature = "fault-points")]
    enabled::pass(site, step);
    #[cfg(not(feature = "fault-points"))]
    let _ = (site, step);
}

#[cfg(feature = "fault-points")]
mod enabled {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What the environment asks for.
    struct Plan {
        /// Name of the point to die at.
        name: Option<String>,
        /// Passes of that point that are still survived.
        left: AtomicU64,
        log: Option<File>,
    }

    impl Plan {
        fn from_environment() -> Self {
            let fault = std::env::var("POLIS_FAULT").ok();
            let (name, count) = match fault.as_deref().map(|fault| fault.rsplit_once('#').unwrap_or((fault, "1"))) {
                None => (None, 1),
                Some((name, count)) => {
                    (Some(name.to_owned()), count.parse().expect("POLIS_FAULT is NAME or NAME#K with a number K"))
                }
            };
            let log = std::env::var_os("POLIS_FAULT_LOG").map(|path| {
                OpenOptions::new().create(true).append(true).open(path).expect("POLIS_FAULT_LOG can be appended to")
            });
            Self { name, left: AtomicU64::new(count), log }
        }
    }

    pub(super) fn pass(site: &str, step: &str) {
        static PLAN: OnceLock<Plan> = OnceLock::new();
        let plan = PLAN.get_or_init(Plan::from_environment);
        if let Some(mut log) = plan.log.as_ref() {
            log.write_all(format!("{site}/{step}\n").as_bytes()).expect("POLIS_FAULT_LOG can be appended to");
        }
        let here = plan.name.as_deref().and_then(|name| name.strip_prefix(site)?.strip_prefix('/')) == Some(step);
        if here && plan.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL).expect("a process can kill itself");
            // The signal is delivered before the call returns to user space of this thread, but let nothing depend on it.
            loop {
                std::thread::park();
            }
        }
    }
}
