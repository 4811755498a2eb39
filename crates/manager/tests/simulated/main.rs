//! The Manager on a simulated disk: what others see of it, its way into a cluster, and every power cut.

mod cluster;
mod cold_start;
mod common;
mod encrypted;
mod ending;
mod join;
mod manager;
mod parameter_source;
mod partition;
mod power_cut;
mod recovery;
mod register;
mod seal;
