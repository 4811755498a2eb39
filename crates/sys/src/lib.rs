//! System calls that need `unsafe` or a peculiar thread, behind a safe face.
//!
//! All `unsafe` code of Polis is in this crate. What is here:
//!
//! * [`spawn`] starts a [`ChildProcess`] that never outlives this process, not even when this process gets SIGKILL, unless its
//!   [`Bond`] says otherwise. The kernel's parent-death signal fires when the *thread* that made the child ends, so every
//!   child is made by one thread that lives as long as the process. A child has an environment built by the caller, inherits
//!   no open file, has a process group of its own, no standard input but a pipe that the caller asks for, and is waited for
//!   through its pidfd.
//! * [`ExitStatus`] says in words how a process ended.
//! * [`WipingAllocator`] wipes memory before it gives it back.
//! * [`reap_orphan`] reaps what is no child made here: for a process that inherits the children of others, as the first of a
//!   machine does.
//! * [`watch_readable`] waits for terminals and the like.
//! * [`set_environment`] is for a process that was started without one.
//! * [`resize_partition`], [`attach_loop`] and [`set_file_system_label`] are requests to block devices and file systems.
//! * [`bind_packet_socket`] is for frames of Ethernet.
//! * [`load_kernel`] loads a kernel that is to take over from the one that runs.
//! * [`hardware`] has the calls for clocks and watchdogs that safe crates do not offer.
//!
//! What a child starts itself is killed with the child's process group when the child ends or is killed by us. When
//! *this* process gets SIGKILL only the child itself is certain to die: its own children must watch over themselves.

mod block;
mod child;
mod command;
mod environment;
mod exit_status;
pub mod hardware;
mod kexec;
mod orphans;
mod own_children;
mod packet;
mod readable;
mod reaper;
mod spawner;
mod wiping_allocator;

pub use block::{attach_loop, grow_xfs, read_partitions_anew, resize_partition, set_file_system_label, xfs_size};
pub use child::ChildProcess;
pub use command::{Bond, Command, Importance, Input, Output, SpawnError};
pub use environment::set_environment;
pub use exit_status::{ExitStatus, signal_name};
pub use kexec::load_kernel;
pub use orphans::{Orphan, kill_all_others, reap_orphan};
pub use packet::bind_packet_socket;
pub use readable::watch_readable;
pub use rustix::process::Signal;
pub use spawner::spawn;
pub use wiping_allocator::WipingAllocator;
