//! From what the TPM or its library answers to what people and `polis` can do something with.

use polis_storage::journal::SealTrouble;
use polis_tpm::protocol::Failure;
use tss_esapi::Error;
use tss_esapi::constants::response_code::Tss2ResponseCodeKind;

/// What was being done when something failed: the same answer means different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Finding the library's way to the device and speaking to it for the first time.
    Reach,
    /// Making the storage key from the owner's seed.
    StorageKey,
    /// Loading what was sealed.
    Load,
    /// Unsealing it.
    Unseal,
    /// Anything that only fails when the TPM does.
    Other(&'static str),
}

/// The failure that this error is.
pub(crate) fn failure(step: Step, tcti: &str, error: Error) -> Failure {
    let trouble = trouble(step, kind(error));
    let message = match (trouble, step) {
        (SealTrouble::Damaged, _) => {
            "what was sealed is damaged: the TPM that sealed it does not accept it any more".to_owned()
        }
        (SealTrouble::OtherBootState, _) => "the TPM does not unseal in this boot state".to_owned(),
        (_, Step::Reach) => format!("the TPM ({tcti}) cannot be reached: {error}"),
        (_, Step::StorageKey) => format!(
            "the TPM ({tcti}) makes no storage key, so nothing can be sealed or unsealed: {error}. If its owner hierarchy has a \
             password or is switched off, the setting must be taken back; nothing was changed"
        ),
        (_, Step::Load) => format!("the TPM ({tcti}) does not load what was sealed: {error}"),
        (_, Step::Unseal) => format!("the TPM ({tcti}) does not unseal: {error}"),
        (_, Step::Other(doing)) => format!("the TPM ({tcti}) fails at {doing}: {error}"),
    };
    Failure { trouble, message }
}

/// What kind of trouble an answer is, at a step. What may be over the next time is [`SealTrouble::NotAnswering`].
fn trouble(step: Step, kind: Option<Tss2ResponseCodeKind>) -> SealTrouble {
    match (step, kind) {
        (Step::Unseal, Some(Tss2ResponseCodeKind::PolicyFail)) => SealTrouble::OtherBootState,
        // What a storage key did not wrap has no integrity for it, and what is cut or changed is no object at all.
        (
            Step::Load,
            Some(
                Tss2ResponseCodeKind::Integrity
                | Tss2ResponseCodeKind::Size
                | Tss2ResponseCodeKind::Value
                | Tss2ResponseCodeKind::Type
                | Tss2ResponseCodeKind::Attributes
                | Tss2ResponseCodeKind::Hash
                | Tss2ResponseCodeKind::Scheme
                | Tss2ResponseCodeKind::Kdf
                | Tss2ResponseCodeKind::Symmetric
                | Tss2ResponseCodeKind::Insufficient
                | Tss2ResponseCodeKind::ReservedBits,
            ),
        ) => SealTrouble::Damaged,
        (Step::Reach | Step::StorageKey | Step::Load | Step::Unseal | Step::Other(_), _) => SealTrouble::NotAnswering,
    }
}

fn kind(error: Error) -> Option<Tss2ResponseCodeKind> {
    match error {
        Error::Tss2Error(code) => code.kind(),
        Error::WrapperError(_) => None,
    }
}
