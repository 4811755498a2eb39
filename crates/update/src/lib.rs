//! How a machine gets another image: where images come from, how one is fetched, and how it gets into the slot that does not run.
//!
//! | step | here | what it does |
//! |---|---|---|
//! | publish | [`ImageLayout`] | writes an image as an OCI artifact, which any registry or web server of files can serve |
//! | name | [`ImageReference`] | where an artifact is, always with the digest of its manifest |
//! | fetch | [`Fetch`] | gets it, and checks every byte of it against the digests, before anything on the machine is changed |
//! | install | [`BootSlots`] | carries the plans of `polis_image::slots` out on the EFI system partition |
//! | prove | [`verdict()`] | says when the image that runs has proven itself |
//! | go over | [`KernelParts`] | takes an image apart for a start without the firmware |
//!
//! What is a whole image and what starts next is decided by `polis_image::slots`, without a disk. This crate knows nothing of clusters:
//! whether a node may be away for a while is decided above.

#![forbid(unsafe_code)]

mod digest;
mod fetch;
mod fetch_error;
mod kernel_parts;
mod layout;
mod manifest;
mod reference;
mod running;
mod slots;
mod transport;
mod verdict;

pub use digest::{Digest, InvalidDigest};
pub use fetch::{Fetch, FetchLimits, Fetched, Progress};
pub use fetch_error::{FetchError, Passing};
pub use kernel_parts::{KernelParts, LoadError, PartsError};
pub use layout::{ImageLayout, LayoutError};
pub use manifest::{ARTIFACT_TYPE, KERNEL_TYPE, ManifestError};
pub use reference::{ImageReference, InvalidReference};
pub use running::{BOOT_ENTRY_OPTION, SelectedEntry};
pub use slots::{BootSlots, FreeSpace, Installed, SlotsError};
pub use transport::ConnectError;
pub use verdict::{Facts, JOINED_FOR, SOUND_FOR, Verdict, verdict};
