//! Servers and clients with real TLS over loopback.

mod audit;
mod connecting;
mod credentials;
mod fake;
mod forged;
mod handshakes;
mod keys;
mod leader;
mod limits;
mod pages;
mod panics;
mod stopping;
mod trust;
