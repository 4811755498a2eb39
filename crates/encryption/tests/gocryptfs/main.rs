//! The gocryptfs backend with the real gocryptfs: what it keeps, what it refuses, and what a kill at any point leaves.

mod common;
mod hostile;
mod keys;
mod kill;
mod life;
mod loss;
mod power;
mod secrecy;
mod torn;
mod unprivileged;
