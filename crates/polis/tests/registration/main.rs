//! Registration that is interrupted: joiner, leader or both are killed at any point of it, from the first start of the joiner
//! until it votes and is gone again, and it ends well all the same. See `points` for the table.
//!
//! Without `POLIS_SOAK=1` the nodes die before and after each site only.

#![cfg(feature = "fault-points")]
#![forbid(unsafe_code)]

mod deleted;
mod matrix;
mod other_leader;
mod points;
mod prepared;
mod recorded;
mod scene;
