//! What the roles of a node ask for.

mod plan;

pub(crate) use plan::{Running, Step, Stored, plan};
