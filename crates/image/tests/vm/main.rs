//! Images in virtual machines, and what the tools of others say of them.
//!
//! The first process of these images is a shell with a line to run, so that what is tested is the image: that it starts, what it
//! starts with, and what the boot loader makes of the slots. What Polis does as the first process is tested elsewhere.

mod firmware;
mod harness;
mod loader;
mod made;
mod tools_of_others;
