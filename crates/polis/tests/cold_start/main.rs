//! Everybody loses power: clusters of real nodes on encrypted data, on hosts of their own, whose members are all killed and come back
//! by themselves, with every write that was acknowledged, and with nobody's help (`cold-start.md`, "Tests that convince").
//!
//! | module | what happens |
//! |---|---|
//! | `power` | all are killed at a random instant and started in a random order, at 1, 2, 3, 5 and 7 members, and at 2 that are confirmed |
//! | `few` | fewer than a quorum come back: nothing opens, and each says what it has and needs |
//! | `mistakes` | a removed node comes first, last week's ESP, data directories that were swapped, other addresses |
//! | `changes` | all are killed at every point of a change of members, and at each size |
//! | `strangers` | a flood of requests on the unlock port |
//!
//! With `POLIS_SOAK=1` everything has its full counts. Each random test prints its seed; `POLIS_SEED` gives the same run again.

#![forbid(unsafe_code)]

#[cfg(feature = "fault-points")]
mod changes;
mod few;
mod mistakes;
mod power;
#[cfg(feature = "fault-points")]
mod recording;
mod scene;
mod strangers;
mod writer;

use std::path::Path;

/// The binary that the nodes and the operator run.
fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_polis"))
}
