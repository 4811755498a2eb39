//! Unlocking and the changes of members as one model, checked in two ways.
//!
//! - [`histories`]: the real functions of the crate, many nodes, and ten thousand histories of changes, crashes, roll-backs and
//!   partitions in any order. A history that fails is printed on one line, and `POLIS_HISTORY` with that line runs it again ([`replay`]).
//! - [`interleavings`]: the rules alone, small, and every order in which messages, crashes and the steps of one change can happen.
//!
//! Both know how to break one rule of `cold-start.md`, "Membership change". The second has to find what that breaks for each of them, the
//! first for the one that shows soonest.

mod histories;
mod interleavings;
mod leader;
mod machine;
mod nodes;
mod power;
mod replay;
mod rules;
mod world;
