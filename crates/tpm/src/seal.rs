//! [`TpmSeal`]: the seal of the journal by the machine's TPM.

use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use polis_secret::Secret32;
use polis_storage::journal::{Seal, SealError, SealKind, SealTrouble};
use zeroize::Zeroizing;

use crate::envelope::{Envelope, EnvelopeError, Header};
use crate::helper::HelperPlace;
use crate::sealed_key::SealedKey;
use crate::tpm::{DEFAULT_TCTI, Tpm, is_measured};

/// What operators must know where the firmware measures nothing.
const UNMEASURED: &str = "the firmware of this machine measures nothing into PCR 7, so what the TPM has sealed opens on this machine \
    whatever is started on it; switch on UEFI and Secure Boot, then run `polis node reseal`";

/// Kind 2: sealed by the TPM of this machine to its boot state.
///
/// Its methods block: those that ask the TPM for up to the limit of [`Tpm`]. After the first journal was opened or closed only
/// [`Seal::check`], [`Seal::renew`] and a journal that was sealed before the last renewal ask it again.
pub struct TpmSeal {
    tpm: Tpm,
    known: Mutex<Known>,
    unmeasured: AtomicBool,
}

/// Envelope keys that the TPM has given since this process began.
#[derive(Default)]
struct Known {
    /// The one under which journals are closed.
    current: Option<Envelopes>,
    /// One under which an older generation was closed: there are two generations, so there is at most one such.
    earlier: Option<Envelopes>,
}

/// An envelope key, and the header of everything that is closed with it.
struct Envelopes {
    header: Header,
    key: Secret32,
}

impl TpmSeal {
    /// The seal by this TPM.
    #[must_use]
    pub fn new(tpm: Tpm) -> Self {
        Self { tpm, known: Mutex::default(), unmeasured: AtomicBool::new(false) }
    }

    /// The seal by the TPM of this machine, if it has one: nothing is looked for before it is needed. The helper is at `helper` if
    /// that is given, else beside the running program or in `search_path` (the value of `PATH`); the TPM is reached by `tcti`, or
    /// through the device of the first TPM.
    #[must_use]
    pub fn find(helper: Option<&Path>, search_path: Option<OsString>, tcti: Option<String>) -> Self {
        let helper = helper.map_or_else(|| HelperPlace::of_this_process(search_path), HelperPlace::at);
        Self::new(Tpm::new(tcti.unwrap_or_else(|| DEFAULT_TCTI.to_owned()), helper))
    }

    /// The TPM.
    #[must_use]
    pub const fn tpm(&self) -> &Tpm {
        &self.tpm
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new envelope key.
    fn new_envelopes(&self) -> Result<Envelopes, SealError> {
        let (sealed, key) = self.tpm.seal_new_key()?;
        self.notice(&sealed);
        Ok(Envelopes { header: Header::new(&sealed), key })
    }

    /// Asks the TPM for the key of an envelope, and opens it.
    fn ask(&self, envelope: &Envelope<'_>) -> Result<(Secret32, Zeroizing<Vec<u8>>), SealError> {
        let key = self.tpm.unseal_key(&envelope.key)?;
        let plain = envelope.open(&key).map_err(damaged)?;
        Ok((key, plain))
    }

    fn notice(&self, sealed: &SealedKey) {
        self.unmeasured.store(!is_measured(&sealed.boot_state), Ordering::Relaxed);
    }
}

impl Seal for TpmSeal {
    fn kind(&self) -> SealKind {
        SealKind::Tpm
    }

    fn name(&self) -> &'static str {
        "TPM"
    }

    fn warning(&self) -> Option<&'static str> {
        self.unmeasured.load(Ordering::Relaxed).then_some(UNMEASURED)
    }

    fn available(&self) -> Result<(), SealError> {
        self.tpm.probe().map(drop)
    }

    fn seal(&self, plain: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut known = self.known();
        // While the first key is made, other journals wait: they must not make one each.
        let envelopes = match known.current.take() {
            Some(envelopes) => envelopes,
            None => self.new_envelopes()?,
        };
        let sealed = envelopes.header.close(&envelopes.key, plain);
        known.current = Some(envelopes);
        Ok(sealed)
    }

    fn unseal(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let envelope = Envelope::parse(sealed).map_err(damaged)?;
        let mut known = self.known();
        let mut all = known.current.iter().chain(&known.earlier);
        if let Some(envelopes) = all.find(|envelopes| envelopes.header == envelope.header) {
            return envelope.open(&envelopes.key).map_err(damaged);
        }
        let (key, plain) = self.ask(&envelope)?;
        self.notice(&envelope.key);
        let envelopes = Envelopes { header: envelope.header, key };
        // The newest generation is read first. After a renewal an older one must not become what is closed with again.
        let place = if known.current.is_none() { &mut known.current } else { &mut known.earlier };
        *place = Some(envelopes);
        Ok(plain)
    }

    fn check(&self, sealed: &[u8]) -> Result<(), SealError> {
        let envelope = Envelope::parse(sealed).map_err(damaged)?;
        self.ask(&envelope).map(drop)
    }

    fn renew(&self) -> Result<(), SealError> {
        // Asked for first: if the TPM refuses, everything stays as it was.
        let envelopes = self.new_envelopes()?;
        let mut known = self.known();
        if let Some(before) = known.current.replace(envelopes) {
            known.earlier = Some(before);
        }
        Ok(())
    }
}

fn damaged(error: EnvelopeError) -> SealError {
    SealError::new(
        SealTrouble::Damaged,
        "what the TPM has sealed is not whole, so it cannot be opened; nothing was changed. With the recovery key, or a copy of the \
         file, the node comes back",
    )
    .caused_by(error)
}
