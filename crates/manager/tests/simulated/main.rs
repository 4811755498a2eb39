//! The Manager on a simulated disk: what others see of it, and every power cut.

mod common;
mod manager;
mod parameter_source;
mod power_cut;
