//! Sealing by the machine's TPM 2.0: what is sealed opens on this machine only, and only in the boot state it was sealed in.
//!
//! - [`TpmSeal`] is the seal of the journal (`polis_storage::journal::Seal`, kind 2). One random *envelope key* is sealed by the
//!   TPM once, under a policy over PCR 7 (SHA-256 bank: Secure Boot and its keys); every generation of the journal is encrypted
//!   under that key, so a write needs no TPM. A restart asks the TPM once.
//! - [`Tpm`] is the TPM behind it: who made it, random bytes, sealing and unsealing one key.
//! - [`SealedKey`] is what the TPM gives in exchange for a key. It is not secret: without this TPM nobody can use it.
//! - [`protocol`] are the messages between this crate and the program `polis-tpm`, which speaks to the device.
//!
//! # Why a program of its own
//!
//! The library that speaks to TPMs is in C, is there only as a shared library, and prints what it likes; `polis` itself must also
//! be built without any of that. So one program, `polis-tpm` (package `polis-tpm-helper`), is started for each conversation,
//! has a time limit, and is killed when it does not answer. Secrets go through its pipes. What the library prints is kept as the
//! cause of an error and reaches no console.
//!
//! The program is found beside the running one, then in `PATH` ([`HelperPlace`]). It is looked for anew each time, so
//! installing it cures its absence without a restart.
//!
//! # What goes wrong, and how it is told apart (crash-windows.md W16)
//!
//! | trouble | how it is known |
//! |---|---|
//! | `NoDevice` | there is no device file, or nothing behind it |
//! | `NotPermitted` | the device file may not be opened by this user |
//! | `NotAnswering` | no answer within the time limit ([`CONVERSATION_LIMIT`]), the device refuses for now, the program died |
//! | `OtherDevice` | the storage key that the TPM makes is not the one that sealed: another TPM, or this one was cleared |
//! | `OtherBootState` | the TPM says that its policy does not hold: PCR 7 is another one |
//! | `Damaged` | a checksum, the TPM's own integrity check, or the cipher's tag is wrong, or a newer Polis wrote it |
//! | `HelperMissing` | the program is not there, or cannot be started |
//!
//! # What it does not stop
//!
//! Commands and answers that carry the key are encrypted on the way to the TPM (a session salted with a key of the TPM), so who
//! only listens on the bus learns nothing. Who can replace the TPM's answers on the bus *while a key is first sealed* can pose as
//! a TPM; later ones are compared with the storage key that is in the sealed file. Whoever is root on the running machine can
//! unseal: that is what the boot state is for.

#![forbid(unsafe_code)]

mod conversation;
mod envelope;
mod helper;
pub mod protocol;
mod seal;
mod sealed_key;
mod tpm;

pub use helper::{HELPER, HelperPlace};
pub use seal::TpmSeal;
pub use sealed_key::SealedKey;
pub use tpm::{CONVERSATION_LIMIT, DEFAULT_TCTI, Tpm, TpmFacts};
