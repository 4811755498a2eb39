//! `polis-tpm`: speaks to the TPM for `polis`.
//!
//! One request on standard input, one answer on standard output (`polis_tpm::protocol`), then it ends. It is a program of its own as
//! the library for TPMs is a shared C library, which `polis` is not linked to, and so that a TPM that does not answer can be given up
//! by killing it. What the library prints goes to standard error, which `polis` keeps as the cause of a failure.

#![forbid(unsafe_code)]

mod device;
mod trouble;

use std::io::{Read as _, Write as _};
use std::process::ExitCode;

use polis_storage::journal::SealTrouble;
use polis_sys::WipingAllocator;
use polis_tpm::protocol::{Answer, Failure, LENGTH_BYTES, MESSAGE_LIMIT, Request, decode_request, encode_answer};
use polis_tpm::{DEFAULT_TCTI, HELPER};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use zeroize::Zeroizing;

/// Exit code of a program that was called wrongly.
const USAGE: u8 = 2;

/// What a key passes through is wiped, whoever made it.
#[global_allocator]
static ALLOCATOR: WipingAllocator = WipingAllocator::new();

fn main() -> ExitCode {
    // There will be a key in its memory. It can only fail for a behaviour that does not exist.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let tcti = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => DEFAULT_TCTI,
        ["--tcti", tcti] => tcti,
        _ => {
            eprintln!(
                "{HELPER} is started by polis, which speaks to it through pipes; usage: {HELPER} [--tcti NAME:CONFIGURATION]"
            );
            return ExitCode::from(USAGE);
        }
    };
    let answer = match request() {
        Ok(request) => device::fulfil(tcti, &request).unwrap_or_else(Answer::Failed),
        Err(problem) => Answer::Failed(Failure {
            trouble: SealTrouble::NotAnswering,
            message: format!("{HELPER} does not understand what it is asked: {problem}"),
        }),
    };
    match std::io::stdout().write_all(&encode_answer(&answer)) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody waits for it any more.
        Err(_) => ExitCode::FAILURE,
    }
}

fn request() -> Result<Request, String> {
    let mut input = std::io::stdin().lock();
    let mut length = [0; LENGTH_BYTES];
    input.read_exact(&mut length).map_err(|error| error.to_string())?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > MESSAGE_LIMIT {
        return Err(format!("{length} bytes are too many"));
    }
    let mut message = Zeroizing::new(vec![0; length]);
    input.read_exact(&mut message).map_err(|error| error.to_string())?;
    decode_request(&message).map_err(|error| error.to_string())
}
