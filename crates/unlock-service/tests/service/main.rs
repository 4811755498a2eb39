//! Members that open each other over real connections, and others who disturb them.

mod bad;
mod cold;
mod moves;
mod proxy;
mod strangers;
mod warm;
mod world;
