//! System calls that need `unsafe` or a peculiar thread, behind a safe face.
//!
//! All `unsafe` code of Polis is in this crate. What is here:
//!
//! * [`spawn`] starts a [`ChildProcess`] that never outlives this process, not even when this process gets SIGKILL.
//!   The kernel's parent-death signal fires when the *thread* that made the child ends, so every child is made by one
//!   thread that lives as long as the process. A child has an environment built by the caller, inherits no open file, has
//!   a process group of its own, no standard input, and is waited for through its pidfd.
//! * [`ExitStatus`] says in words how a process ended.
//!
//! What a child starts itself is killed with the child's process group when the child ends or is killed by us. When
//! *this* process gets SIGKILL only the child itself is certain to die: its own children must watch over themselves.

mod child;
mod command;
mod exit_status;
mod reaper;
mod spawner;

pub use child::ChildProcess;
pub use command::{Command, Importance, Output, SpawnError};
pub use exit_status::{ExitStatus, signal_name};
pub use rustix::process::Signal;
pub use spawner::spawn;
