//! The workers of a node against a leader that a test steers, over real TLS on loopback.

mod cluster;
mod contact;
mod leader;
mod member;
mod node;
