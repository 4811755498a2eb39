//! The disk image of a machine: what is in it, and how it is put together.
//!
//! An image is made in two steps. [`ImagePlan::prepare`] looks at the inputs and says what will be in the image: a value that can be
//! printed and compared. [`ImagePlan::build`] makes it, without choices. The same inputs give the same bytes; the one exception is a
//! signature for Secure Boot, in which the tool that makes it writes the time.
//!
//! | part | made by | what it is |
//! |---|---|---|
//! | initramfs | [`Tree`] | the whole system: `polis` as `/init`, the programs it starts with their libraries, kernel modules; newc cpio, compressed |
//! | unified kernel image | [`unified_kernel_image`] | systemd's stub with kernel, command line and initramfs in one EFI program, which the firmware can check |
//! | EFI system partition | [`EspFiles`] | systemd-boot, the first slot ([`slots`]), parameters where given |
//! | disk | `polis-disks` | GPT with the EFI system partition and a small data partition, which grows at the first start |
//!
//! The [`slots`] are what an update changes later. They are pure, and know nothing of the rest of this crate.
//!
//! This crate runs on the machine that makes images. It knows nothing of nodes and clusters, and reads and writes only files that it
//! is given. It starts two programs, where they are needed: `zstd` and `sbsign`.

#![forbid(unsafe_code)]

mod build;
mod cpio;
mod elf;
mod esp;
mod inputs;
mod kernel;
mod libraries;
mod module_lists;
mod plan;
pub mod slots;
mod tool;
mod tree;
mod uki;

pub use build::{BuildError, Built, LONGEST_IMAGE};
pub use cpio::CpioError;
pub use elf::{ElfError, ElfFacts};
pub use esp::{EspError, EspFiles};
pub use inputs::{COMMAND_LINE, Compression, Drivers, ImageInputs, Program, SigningKeys};
pub use kernel::{Kernel, KernelError, LoadedWhen, Module};
pub use libraries::{LibraryError, LibrarySearch};
pub use plan::{ImagePlan, PlanError, PlannedFile};
pub use tool::{Tool, ToolError};
pub use tree::{Node, Tree};
pub use uki::{Sections, UkiError, unified_kernel_image};
