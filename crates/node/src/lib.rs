//! The composition root of `polis node run`: builds every part, connects them, runs them, and ends with a reason.
//!
//! Nothing here decides anything about enrolment (that is the Manager) or knows how a part does its work. It looks before it
//! touches: root, parameters and etcd are checked before the first byte is written, so that whoever called it wrongly finds
//! everything as it was.
//!
//! Beside the parts that make a node, it has what the machine and people see of one: the control socket, node management on
//! port 7839, the metrics on port 7840, the service manager, the last state on the disk, and what commands do to the files of a
//! node that does not run ([`FilesOnDisk`]).

#![forbid(unsafe_code)]

mod condition_log;
mod console;
mod control;
mod core_files;
mod descriptors;
mod farewell;
mod files;
mod keeping;
mod last_state;
#[cfg(test)]
mod loopback;
mod machine;
mod management;
mod measures;
mod memory;
mod metrics;
mod options;
mod owner;
mod parts;
mod peers;
mod power;
mod report;
mod restart;
mod run;
mod run_error;
mod service_manager;
mod serving;
mod status;
mod unlock;
mod update;

pub use files::FilesOnDisk;
pub use machine::{is_machine, run_machine};
pub use options::{LogFormat, Options};
pub use run::run;
pub use run_error::RunError;
