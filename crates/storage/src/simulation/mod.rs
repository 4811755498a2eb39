//! A disk that can lose power, for tests: of this crate and of those that are built on it.
//!
//! [`SimulatedDisk`] keeps files in memory and records what is done to it; [`RecordingDisk`] records what is done to
//! another disk, for example a real one under a whole node. Either way the result is a [`Recording`]: the [`Image`] at
//! the start and every [`Operation`] after it. From a recording come the images that a power cut can leave at each point,
//! with everything that was not synced kept, dropped or torn by a seeded choice ([`Recording::power_cut`]), and the
//! recordings of programs that forgot one of their syncs ([`Recording::without_sync`]), which a test must be able to tell
//! from the right one.
//!
//! [`SimulatedTpm`] is a seal for the journal whose machine can be changed.

mod disk;
mod image;
mod model;
mod operation;
mod recorder;
mod recording;
mod tpm;

pub use disk::{Failure, SimulatedDisk};
pub use image::{Image, Node};
pub use operation::{Operation, SyncSite, SyncTarget};
pub use recorder::RecordingDisk;
pub use recording::{Cut, Recording};
pub use tpm::SimulatedTpm;
