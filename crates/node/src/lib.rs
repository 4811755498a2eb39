//! The composition root of `polis node run`: builds every part, connects them, runs them, and ends with a reason.
//!
//! Nothing here decides anything about enrolment (that is the Manager) or knows how a part does its work. It looks before it
//! touches: root, parameters and etcd are checked before the first byte is written, so that whoever called it wrongly finds
//! everything as it was.

#![forbid(unsafe_code)]

mod condition_log;
mod console;
mod control;
mod last_state;
mod options;
mod run;
mod run_error;
mod status;

pub use options::{LogFormat, Options};
pub use run::run;
pub use run_error::RunError;
