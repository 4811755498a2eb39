//! The workers of a node against a leader that a test steers, over real TLS on loopback.

mod cluster_keys;
mod contact;
mod founder;
mod keeping;
mod leader;
mod lists;
mod member;
mod node;
mod replacement;
