//! Understanding what other programs write: etcd's JSON lines and the records of the kernel.
//!
//! A parser never fails: what it does not understand stays in the log as a raw entry, as it came.

mod etcd;
mod kernel;

pub use etcd::{ETCD_LINE_BYTES, etcd};
pub use kernel::{KERNEL_RECORD_BYTES, kernel};
