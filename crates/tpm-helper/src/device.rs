//! The conversation with the TPM.
//!
//! The storage key is made anew each time, from the template that the TCG gives for storage keys on the curve P-256 under the owner
//! hierarchy: the TPM derives the same key from its own seed each time, so nothing is stored in it. Its name is kept beside what was
//! sealed: a TPM that makes another one has another seed.
//!
//! A session is salted with a secret that is encrypted to the storage key. Commands and answers that carry a key are encrypted under
//! it (AES-128-CFB), so the key does not cross the bus in the clear. Everything made here is flushed before the answer is given.

use std::fs::OpenOptions;
use std::str::FromStr as _;

use polis_secret::Secret32;
use polis_storage::journal::SealTrouble;
use polis_tpm::protocol::{Answer, Failure, Request};
use polis_tpm::{SealedKey, TpmFacts};
use rustix::io::Errno;
use tss_esapi::attributes::{ObjectAttributesBuilder, SessionAttributesBuilder};
use tss_esapi::constants::{PropertyTag, SessionType};
use tss_esapi::handles::KeyHandle;
use tss_esapi::interface_types::algorithm::{HashingAlgorithm, PublicAlgorithm};
use tss_esapi::interface_types::ecc::EccCurve;
use tss_esapi::interface_types::resource_handles::Hierarchy;
use tss_esapi::interface_types::session_handles::{AuthSession, PolicySession};
use tss_esapi::structures::{
    Digest, EccPoint, EccScheme, KeyDerivationFunctionScheme, KeyedHashScheme, PcrSelectionList,
    PcrSelectionListBuilder, PcrSlot, Private, Public, PublicBuilder, PublicEccParametersBuilder,
    PublicKeyedHashParameters, SensitiveData, SymmetricDefinition, SymmetricDefinitionObject,
};
use tss_esapi::traits::{Marshall as _, UnMarshall as _};
use tss_esapi::{Context, Error, TctiNameConf, WrapperErrorKind};
use zeroize::Zeroizing;

use crate::trouble::{Step, failure};

/// Bytes of a SHA-256 digest, and of a key.
const LENGTH: usize = 32;

/// Calls after which a TPM that gives fewer random bytes than it is asked for is not asked again.
const RANDOM_CALLS: usize = 48;

/// Does what is asked.
pub(crate) fn fulfil(tcti: &str, request: &Request) -> Result<Answer, Failure> {
    let mut device = Device::open(tcti)?;
    let answer = match request {
        Request::Probe => device.facts().map(Answer::Facts),
        Request::Random { contribution } => device.random(contribution).map(Answer::Random),
        Request::Seal { contribution } => device.seal(contribution).map(|(sealed, key)| Answer::Sealed { sealed, key }),
        Request::Unseal { sealed } => device.unseal(sealed).map(Answer::Unsealed),
    };
    // Dropping it flushes what it holds, which is done before anybody reads the answer and ends this process.
    drop(device);
    answer
}

/// A TPM that has made its storage key and a session.
struct Device<'a> {
    tcti: &'a str,
    context: Context,
    storage_key: KeyHandle,
    storage_key_name: Vec<u8>,
    session: AuthSession,
}

impl<'a> Device<'a> {
    fn open(tcti: &'a str) -> Result<Self, Failure> {
        if let Some(path) = tcti.strip_prefix("device:") {
            look_at(path)?;
        }
        let failed = |step| move |error| failure(step, tcti, error);
        let configuration = TctiNameConf::from_str(tcti).map_err(failed(Step::Reach))?;
        let mut context = Context::new(configuration).map_err(failed(Step::Reach))?;
        // Nothing secret is said before there is a key to be salted with.
        let template = storage_key_template().map_err(failed(Step::StorageKey))?;
        let made = context.execute_with_nullauth_session(|context| {
            context.create_primary(Hierarchy::Owner, template, None, None, None, None)
        });
        let storage_key = made.map_err(failed(Step::StorageKey))?.key_handle;
        let name = context.tr_get_name(storage_key.into()).map_err(failed(Step::StorageKey))?;
        let session = salted_session(&mut context, storage_key).map_err(failed(Step::Other("starting a session")))?;
        Ok(Self { tcti, context, storage_key, storage_key_name: name.value().to_vec(), session })
    }

    fn failed(&self, step: Step) -> impl Fn(Error) -> Failure + use<'a> {
        let tcti = self.tcti;
        move |error| failure(step, tcti, error)
    }

    fn facts(&mut self) -> Result<TpmFacts, Failure> {
        let failed = self.failed(Step::Other("telling its properties"));
        let mut property = |tag| self.context.get_tpm_property(tag).map(Option::unwrap_or_default).map_err(&failed);
        let manufacturer = property(PropertyTag::Manufacturer)?.to_be_bytes();
        let firmware =
            [property(PropertyTag::FirmwareVersion1)?, property(PropertyTag::FirmwareVersion2)?].map(u64::from);
        let letters = manufacturer.iter().filter(|byte| byte.is_ascii_graphic());
        Ok(TpmFacts {
            manufacturer: letters.map(|byte| char::from(*byte)).collect(),
            firmware_version: firmware[0] << 32 | firmware[1],
            boot_state: self.boot_state()?,
        })
    }

    /// PCR 7 now.
    fn boot_state(&mut self) -> Result<[u8; LENGTH], Failure> {
        let failed = self.failed(Step::Other("reading PCR 7"));
        let selection = boot_state_selection().map_err(&failed)?;
        let (_, _, digests) =
            self.context.execute_without_session(|context| context.pcr_read(selection)).map_err(failed)?;
        let digest = digests.value().first().and_then(|digest| digest.value().try_into().ok());
        digest.ok_or_else(|| Failure {
            trouble: SealTrouble::NotAnswering,
            message: format!(
                "the TPM ({}) has no PCR 7 for SHA-256, so nothing can be bound to the boot state: switch the bank on in the \
                 firmware's settings",
                self.tcti
            ),
        })
    }

    /// Random bytes of the TPM, mixed with others.
    fn random(&mut self, contribution: &Secret32) -> Result<Secret32, Failure> {
        let failed = self.failed(Step::Other("making random bytes"));
        let mut mixed = Zeroizing::new(*contribution.expose());
        let mut filled = 0;
        for _ in 0..RANDOM_CALLS {
            let wanted = LENGTH - filled;
            if wanted == 0 {
                return Ok(Secret32::new(*mixed));
            }
            self.encrypt(Direction::Answer).map_err(&failed)?;
            let bytes = self
                .context
                .execute_with_session(Some(self.session), |context| context.get_random(wanted))
                .map_err(&failed)?;
            for (mixed, byte) in mixed.iter_mut().skip(filled).zip(bytes.value()) {
                *mixed ^= byte;
            }
            filled = LENGTH.min(filled + bytes.value().len());
        }
        Err(Failure {
            trouble: SealTrouble::NotAnswering,
            message: format!("the TPM ({}) gives too few random bytes", self.tcti),
        })
    }

    /// A new key, sealed to this TPM and its boot state. It was unsealed once before anybody relies on it.
    fn seal(&mut self, contribution: &Secret32) -> Result<(SealedKey, Secret32), Failure> {
        let key = self.random(contribution)?;
        let boot_state = self.boot_state()?;
        let failed = self.failed(Step::Other("sealing"));
        let object = self.boot_state_policy().and_then(sealed_object).map_err(&failed)?;
        let data = SensitiveData::try_from(key.expose().to_vec()).map_err(&failed)?;
        self.encrypt(Direction::Command).map_err(&failed)?;
        let parent = self.storage_key;
        let made = self
            .context
            .execute_with_session(Some(self.session), |context| {
                context.create(parent, object, None, Some(data), None, None)
            })
            .map_err(&failed)?;
        let sealed = SealedKey {
            storage_key_name: self.storage_key_name.clone(),
            public: made.out_public.marshall().map_err(&failed)?,
            private: made.out_private.value().to_vec(),
            boot_state,
        };
        if self.unseal(&sealed)? != key {
            return Err(Failure {
                trouble: SealTrouble::NotAnswering,
                message: format!("the TPM ({}) does not give back what it has sealed a moment ago", self.tcti),
            });
        }
        Ok((sealed, key))
    }

    fn unseal(&mut self, sealed: &SealedKey) -> Result<Secret32, Failure> {
        let SealedKey { storage_key_name, public, private, boot_state } = sealed;
        if *storage_key_name != self.storage_key_name {
            return Err(Failure {
                trouble: SealTrouble::OtherDevice,
                message: format!(
                    "it was sealed by another TPM than that of this machine ({}), or by this one before it was cleared. Put the \
                     disk back into its machine, or use the recovery key; nothing was changed",
                    self.tcti
                ),
            });
        }
        let failed = self.failed(Step::Load);
        // Bytes that are no public area were changed, as the checksum was right when they were written.
        let damaged = |_| Failure {
            trouble: SealTrouble::Damaged,
            message: "what was sealed is damaged: it is not in the form of a TPM".to_owned(),
        };
        let public = Public::unmarshall(public).map_err(damaged)?;
        let private = Private::try_from(private.clone()).map_err(damaged)?;
        self.encrypt(Direction::Neither).map_err(&failed)?;
        let parent = self.storage_key;
        let object = self
            .context
            .execute_with_session(Some(self.session), |context| context.load(parent, private, public))
            .map_err(failed)?;
        let failed = self.failed(Step::Unseal);
        let policy = self.policy_session(SessionType::Policy).map_err(&failed)?;
        self.encrypt(Direction::Answer).map_err(&failed)?;
        let sessions = (Some(AuthSession::from(policy)), Some(self.session), None);
        let data = match self.context.execute_with_sessions(sessions, |context| context.unseal(object.into())) {
            Ok(data) => data,
            Err(error) => {
                let failure = failed(error);
                return Err(if failure.trouble == SealTrouble::OtherBootState {
                    self.other_boot_state(boot_state)
                } else {
                    failure
                });
            }
        };
        Secret32::try_from(data.value()).map_err(|error| Failure {
            trouble: SealTrouble::Damaged,
            message: format!("what was sealed is no key: {error}"),
        })
    }

    fn other_boot_state(&mut self, sealed: &[u8; LENGTH]) -> Failure {
        let now = match self.boot_state() {
            Ok(now) => hex(&now),
            Err(failure) => return failure,
        };
        Failure {
            trouble: SealTrouble::OtherBootState,
            message: format!(
                "it was sealed in another boot state of this machine: PCR 7 was {}, and PCR 7 is {now} now. Secure Boot was switched \
                 on or off, or its keys or the firmware were changed. Take the change back, or use the recovery key and then \
                 `polis node reseal`; nothing was changed",
                hex(sealed)
            ),
        }
    }

    /// What the session encrypts in the next command.
    fn encrypt(&mut self, direction: Direction) -> Result<(), Error> {
        let (command, answer) = match direction {
            Direction::Command => (true, false),
            Direction::Answer => (false, true),
            Direction::Neither => (false, false),
        };
        // The names of the TPM are its own: it decrypts commands.
        let mask = SessionAttributesBuilder::new().with_decrypt(true).with_encrypt(true).build().1;
        let (attributes, _) = SessionAttributesBuilder::new().with_decrypt(command).with_encrypt(answer).build();
        self.context.tr_sess_set_attributes(self.session, attributes, mask)
    }

    /// The digest of the policy that PCR 7 is as it is now.
    fn boot_state_policy(&mut self) -> Result<Digest, Error> {
        let session = self.policy_session(SessionType::Trial)?;
        self.context.execute_without_session(|context| context.policy_get_digest(session))
    }

    /// A session in which the policy over PCR 7 was stated.
    fn policy_session(&mut self, kind: SessionType) -> Result<PolicySession, Error> {
        let session = self.context.execute_without_session(|context| {
            context.start_auth_session(
                None,
                None,
                None,
                kind,
                SymmetricDefinition::AES_128_CFB,
                HashingAlgorithm::Sha256,
            )
        })?;
        let session =
            PolicySession::try_from(session.ok_or(Error::WrapperError(WrapperErrorKind::WrongValueFromTpm))?)?;
        let selection = boot_state_selection()?;
        // Without a digest it is the state of the moment.
        self.context.execute_without_session(|context| context.policy_pcr(session, Digest::default(), selection))?;
        Ok(session)
    }
}

/// What is encrypted: the first parameter of a command, or of its answer.
#[derive(Clone, Copy)]
enum Direction {
    Command,
    Answer,
    Neither,
}

/// Says what keeps the device file from being opened, in words of its own.
fn look_at(path: &str) -> Result<(), Failure> {
    let Err(error) = OpenOptions::new().read(true).write(true).open(path) else { return Ok(()) };
    let (trouble, message) = match Errno::from_io_error(&error) {
        Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => {
            (SealTrouble::NoDevice, format!("this machine has no TPM 2.0: there is none at {path}"))
        }
        Some(Errno::ACCESS | Errno::PERM) => (
            SealTrouble::NotPermitted,
            format!(
                "the TPM {path} may not be opened by this user: add the user to the device's group (tss on Debian)"
            ),
        ),
        Some(Errno::BUSY) => (SealTrouble::NotAnswering, format!("the TPM {path} is in use by another program")),
        Some(_) | None => (SealTrouble::NotAnswering, format!("the TPM {path} cannot be opened: {error}")),
    };
    Err(Failure { trouble, message })
}

/// A session whose keys depend on a secret that only the owner of the storage key can decrypt.
fn salted_session(context: &mut Context, storage_key: KeyHandle) -> Result<AuthSession, Error> {
    let session = context.execute_without_session(|context| {
        context.start_auth_session(
            Some(storage_key),
            None,
            None,
            SessionType::Hmac,
            SymmetricDefinition::AES_128_CFB,
            HashingAlgorithm::Sha256,
        )
    })?;
    session.ok_or(Error::WrapperError(WrapperErrorKind::WrongValueFromTpm))
}

/// PCR 7 of the SHA-256 bank.
fn boot_state_selection() -> Result<PcrSelectionList, Error> {
    PcrSelectionListBuilder::new().with_selection(HashingAlgorithm::Sha256, &[PcrSlot::Slot7]).build()
}

/// The template of a storage key (TCG TPM v2.0 Provisioning Guidance, storage root key on P-256).
fn storage_key_template() -> Result<Public, Error> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_sensitive_data_origin(true)
        .with_user_with_auth(true)
        .with_no_da(true)
        .with_restricted(true)
        .with_decrypt(true)
        .build()?;
    let parameters = PublicEccParametersBuilder::new()
        .with_ecc_scheme(EccScheme::Null)
        .with_curve(EccCurve::NistP256)
        .with_is_signing_key(false)
        .with_is_decryption_key(true)
        .with_restricted(true)
        .with_symmetric(SymmetricDefinitionObject::AES_128_CFB)
        .with_key_derivation_function_scheme(KeyDerivationFunctionScheme::Null)
        .build()?;
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::Ecc)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_ecc_parameters(parameters)
        .with_ecc_unique_identifier(EccPoint::default())
        .build()
}

/// An object that holds data and is opened by this policy and nothing else. Failures do not count against a limit, as there is no
/// password to be guessed.
fn sealed_object(policy: Digest) -> Result<Public, Error> {
    let attributes = ObjectAttributesBuilder::new()
        .with_fixed_tpm(true)
        .with_fixed_parent(true)
        .with_no_da(true)
        .with_admin_with_policy(true)
        .build()?;
    PublicBuilder::new()
        .with_public_algorithm(PublicAlgorithm::KeyedHash)
        .with_name_hashing_algorithm(HashingAlgorithm::Sha256)
        .with_object_attributes(attributes)
        .with_auth_policy(policy)
        .with_keyed_hash_parameters(PublicKeyedHashParameters::new(KeyedHashScheme::Null))
        .with_keyed_hash_unique_identifier(Digest::default())
        .build()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
