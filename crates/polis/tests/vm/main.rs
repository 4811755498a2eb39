//! Polis on machines of its own: the image that `scripts/image` has made, in virtual machines with firmware, TPM, disk and network
//! (`scripts/test-vm`; with `--short` a short form of it).
//!
//! The environment variable `POLIS_TEST_IMAGE` names the directory with `polis.raw` and `polis.efi`. Without it there is nothing to
//! boot, and each test says so and returns. `POLIS_SOAK=1` asks for the full counts, and for the tests that the short form leaves out.
//!
//! What a machine printed last is in the text of each failure.

#![forbid(unsafe_code)]

#[path = "../common/mod.rs"]
mod common;

mod boot_state;
mod install;
mod keys;
mod life;
mod power_cuts;
mod site;
mod three;
mod update;
mod witnesses;
