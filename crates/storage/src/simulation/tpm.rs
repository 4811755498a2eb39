//! [`SimulatedTpm`]: a seal as a TPM makes it, with a machine around it that can be changed. It hides what it seals from
//! whoever looks at the disk, and from nobody who reads this code.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::journal::{Seal, SealError, SealKind, SealTrouble};

/// Bytes before the hidden content: which TPM, which boot state, a number used once.
const HEADER_LENGTH: usize = 8 + 8 + 16;

/// A simulated TPM. Clones are the same one.
#[derive(Clone)]
pub struct SimulatedTpm(Arc<Mutex<Machine>>);

struct Machine {
    /// Which TPM it is: another one after it was cleared.
    seed: u64,
    boot_state: u64,
    present: bool,
    answers: bool,
    helper: bool,
    damaged: bool,
    /// Boot state to which the next seal is bound.
    bound: Option<u64>,
    /// What this process has opened already and keeps open: the TPM and the boot state.
    remembered: Option<(u64, u64)>,
}

impl Default for SimulatedTpm {
    fn default() -> Self {
        Self::new()
    }
}

impl SimulatedTpm {
    /// A machine in boot state 1 whose TPM works.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Machine {
            seed: rand::random(),
            boot_state: 1,
            present: true,
            answers: true,
            helper: true,
            damaged: false,
            bound: None,
            remembered: None,
        })))
    }

    /// Takes the TPM out of the machine.
    pub fn remove(&self) {
        self.machine().present = false;
    }

    /// Puts it back.
    pub fn insert(&self) {
        self.machine().present = true;
    }

    /// Clears the TPM: what it has sealed it opens no more.
    pub fn clear(&self) {
        let mut machine = self.machine();
        machine.seed = machine.seed.wrapping_add(1);
        machine.remembered = None;
    }

    /// Starts the machine and the process again, in this boot state.
    pub fn boot_into(&self, boot_state: u64) {
        let mut machine = self.machine();
        machine.boot_state = boot_state;
        (machine.bound, machine.remembered) = (None, None);
    }

    /// Starts the process again: what it has kept open is closed.
    pub fn restart(&self) {
        let boot_state = self.machine().boot_state;
        self.boot_into(boot_state);
    }

    /// Changes the boot state under a running process.
    pub fn drift(&self, boot_state: u64) {
        self.machine().boot_state = boot_state;
    }

    /// Whether the TPM answers.
    pub fn answer(&self, answers: bool) {
        self.machine().answers = answers;
    }

    /// Whether the program that speaks to the TPM is installed.
    pub fn install_helper(&self, helper: bool) {
        self.machine().helper = helper;
    }

    /// Makes of all that was sealed something else.
    pub fn damage(&self) {
        self.machine().damaged = true;
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    fn works(&self) -> Result<(), SealError> {
        let trouble = match self {
            Self { helper: false, .. } => SealTrouble::HelperMissing,
            Self { present: false, .. } => SealTrouble::NoDevice,
            Self { answers: false, .. } => SealTrouble::NotAnswering,
            Self { helper: true, present: true, answers: true, .. } => return Ok(()),
        };
        Err(SealError::new(trouble, "the simulated TPM cannot be used"))
    }

    /// The boot state of a sealed file that this machine would open.
    fn open(&self, sealed: &[u8], remembered: Option<(u64, u64)>) -> Result<u64, SealError> {
        let number = |at: usize| sealed.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
        let header = number(0).zip(number(8)).filter(|_| sealed.len() >= HEADER_LENGTH && !self.damaged);
        let Some((seed, boot_state)) = header else {
            return Err(SealError::new(SealTrouble::Damaged, "this is nothing that a TPM has sealed"));
        };
        if remembered == Some((seed, boot_state)) {
            return Ok(boot_state);
        }
        self.works()?;
        if seed != self.seed {
            return Err(SealError::new(SealTrouble::OtherDevice, "another TPM has sealed it"));
        }
        if boot_state != self.boot_state {
            return Err(SealError::new(SealTrouble::OtherBootState, "it was sealed in another boot state"));
        }
        Ok(boot_state)
    }
}

/// The content, hidden or shown: the same both ways.
fn masked(header: &[u8], content: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(content.to_vec());
    for (number, block) in (0_u64..).zip(bytes.chunks_mut(32)) {
        let mask = Sha256::new().chain_update(header).chain_update(number.to_be_bytes()).finalize();
        block.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
    bytes
}

impl Seal for SimulatedTpm {
    fn kind(&self) -> SealKind {
        SealKind::Tpm
    }

    fn name(&self) -> &'static str {
        "simulated tpm"
    }

    fn warning(&self) -> Option<&'static str> {
        None
    }

    fn available(&self) -> Result<(), SealError> {
        self.machine().works()
    }

    fn seal(&self, plain: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut machine = self.machine();
        if machine.bound.is_none() {
            machine.works()?;
        }
        let boot_state = machine.bound.unwrap_or(machine.boot_state);
        machine.bound = Some(boot_state);
        machine.remembered = Some((machine.seed, boot_state));
        let mut sealed = Zeroizing::new(Vec::with_capacity(HEADER_LENGTH + plain.len()));
        sealed.extend_from_slice(&machine.seed.to_be_bytes());
        sealed.extend_from_slice(&boot_state.to_be_bytes());
        sealed.extend_from_slice(&rand::random::<u128>().to_be_bytes());
        let hidden = masked(&sealed, plain);
        sealed.extend_from_slice(&hidden);
        Ok(sealed)
    }

    fn unseal(&self, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, SealError> {
        let mut machine = self.machine();
        let boot_state = machine.open(sealed, machine.remembered)?;
        machine.bound = Some(boot_state);
        machine.remembered = Some((machine.seed, boot_state));
        let (header, hidden) = sealed.split_at(HEADER_LENGTH);
        Ok(masked(header, hidden))
    }

    fn check(&self, sealed: &[u8]) -> Result<(), SealError> {
        self.machine().open(sealed, None).map(|_| ())
    }

    fn renew(&self) -> Result<(), SealError> {
        let mut machine = self.machine();
        machine.works()?;
        machine.bound = Some(machine.boot_state);
        Ok(())
    }
}
