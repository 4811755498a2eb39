//! `polis parameters bootstrap`.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polis_identity::PublicKey;
use polis_parameters::{ClusterDomain, Label, Labels, StoragePolicy, TpmMode};
use polis_proto::api::{NodeParameters, node_parameters};
use polis_proto::common::ClusterConfiguration;
use prost::Message as _;

use crate::arguments::{BootstrapArguments, StorageSecurity, TpmUse};
use crate::atomic_file::{self, Existing};
use crate::failure::Failure;
use crate::recovery_key::read_public;
use crate::view::print;
use crate::{owner, shell};

use super::own;

/// Mode of a parameters file: it holds no secret when it makes a cluster.
pub(crate) const MODE: u32 = 0o644;

pub(super) fn run(arguments: &BootstrapArguments) -> Result<ExitCode, Failure> {
    let labels = parse_labels(&arguments.labels)?;
    let domain: ClusterDomain = arguments.cluster_domain.parse().map_err(|error| {
        Failure::usage(format!("{:?} cannot be the domain of a cluster", arguments.cluster_domain)).because(&error)
    })?;
    let owner = owner::read_key(&arguments.owner_key).map_err(|error| owner::failure(&error, &arguments.owner_key))?;
    let bytes = bootstrap_file(
        &owner,
        storage_policy(arguments.storage_security),
        tpm_mode(arguments.tpm_mode),
        &domain,
        &labels,
    );
    let recovery_key = arguments.recovery_key.as_deref().map(read_public).transpose()?;
    let existing = if arguments.force { Existing::Replace } else { Existing::Keep };
    // First what goes with the parameters: parameters that are there without it would make a cluster that lacks it.
    own::settle(&arguments.output, recovery_key, existing)?;
    report_output(&arguments.output, &bytes, MODE, existing)
}

/// Writes a parameters file and says so.
///
/// # Errors
///
/// When the system refuses, or a file with another content is there and is to be kept.
pub(super) fn report_output(path: &Path, bytes: &[u8], mode: u32, existing: Existing) -> Result<ExitCode, Failure> {
    let written = write_output(path, bytes, mode, existing).map_err(|error| output_failure(&error))?;
    let what = match written {
        Written::New => "wrote",
        Written::Same => "unchanged:",
    };
    let quoted = shell::quote(path);
    print(&format!(
        "{what} {} ({} bytes)\nsee what is in it: polis parameters show {quoted}\n",
        path.display(),
        bytes.len()
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// How it is shown that a file was not written.
pub(super) fn output_failure(error: &WriteOutputError) -> Failure {
    match error {
        WriteOutputError::Differs { .. } => Failure::of(error)
            .because_of("nothing was changed")
            .hint("write to another file, or replace this one with --force"),
        WriteOutputError::Write { .. } => {
            Failure::of(error).hint("check the path, its permissions and the room on its disk")
        }
    }
}

/// The bytes of a file that makes a cluster. The same input gives the same bytes.
pub(crate) fn bootstrap_file(
    owner: &PublicKey,
    storage: StoragePolicy,
    tpm: TpmMode,
    domain: &ClusterDomain,
    labels: &Labels,
) -> Vec<u8> {
    let configuration = ClusterConfiguration {
        cluster_domain: domain.to_string(),
        tpm_mode: tpm.to_wire().into(),
        storage_security_policy: storage.to_wire().into(),
        kubernetes: None,
    };
    let bootstrap = node_parameters::ClusterBootstrap {
        owner_public_key: owner.as_bytes().to_vec(),
        initial_cluster_configuration: Some(configuration),
        labels: Some(labels.to_wire()),
    };
    let cluster = Some(node_parameters::Cluster::ClusterBootstrap(bootstrap));
    NodeParameters { cluster, network_config: None }.encode_to_vec()
}

/// Takes all labels, or names every bad one.
pub(super) fn parse_labels(texts: &[String]) -> Result<Labels, Failure> {
    let (mut labels, mut bad) = (Labels::default(), Vec::new());
    for text in texts {
        if let Err(error) = text.parse::<Label>().and_then(|label| labels.push(label)) {
            bad.push(format!("--label {}: {error}", text.escape_debug()));
        }
    }
    if bad.is_empty() {
        return Ok(labels);
    }
    let number = if bad.len() == 1 { "a label is".to_owned() } else { format!("{} labels are", bad.len()) };
    let failure = Failure::usage(format!("{number} not usable; nothing was written"));
    Err(bad.into_iter().fold(failure, Failure::because_of))
}

const fn storage_policy(argument: StorageSecurity) -> StoragePolicy {
    match argument {
        StorageSecurity::Permissive => StoragePolicy::Permissive,
        StorageSecurity::Encrypted => StoragePolicy::NeedsEncryption,
        StorageSecurity::Authenticated => StoragePolicy::NeedsEncryptionAndAuthentication,
        StorageSecurity::Insecure => StoragePolicy::NeedsInsecure,
    }
}

const fn tpm_mode(argument: TpmUse) -> TpmMode {
    match argument {
        TpmUse::Required => TpmMode::Required,
        TpmUse::BestEffort => TpmMode::BestEffort,
        TpmUse::Disabled => TpmMode::Disabled,
    }
}

/// What [`write_output`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    New,
    /// The file was there with this very content.
    Same,
}

/// Why the file could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteOutputError {
    #[error("{} is there already, with another content", path.display())]
    Differs { path: PathBuf },
    #[error("{} could not be written", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Writes a file, in one step and durably. A file that is there with the same content stays as it is.
///
/// # Errors
///
/// When the system refuses, or a file with another content is there and is to be kept.
pub(crate) fn write_output(
    path: &Path,
    bytes: &[u8],
    mode: u32,
    existing: Existing,
) -> Result<Written, WriteOutputError> {
    let failed = |source| WriteOutputError::Write { path: path.to_owned(), source };
    if has_content(path, bytes).map_err(failed)? {
        return Ok(Written::Same);
    }
    match atomic_file::write(path, bytes, mode, existing) {
        Ok(()) => Ok(Written::New),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(WriteOutputError::Differs { path: path.to_owned() })
        }
        Err(error) => Err(failed(error)),
    }
}

/// Whether `path` is a file with exactly this content.
fn has_content(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(data) if !data.is_file() => return Ok(false),
        Ok(_) => {}
    }
    let mut found = Vec::new();
    // One byte more than there should be tells a longer file.
    let limit = u64::try_from(bytes.len()).unwrap_or(u64::MAX).saturating_add(1);
    fs::File::open(path)?.take(limit).read_to_end(&mut found)?;
    Ok(found == bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use polis_parameters::{ClusterParameters, Parameters};

    use super::*;

    #[test]
    fn what_is_written_is_what_a_node_reads() {
        let owner = polis_identity::OwnerKey::generate().public();
        let labels = parse_labels(&["site=lab".into(), "empty=".into()]).unwrap();
        let domain = "example.internal".parse().unwrap();
        for storage in [
            StorageSecurity::Permissive,
            StorageSecurity::Encrypted,
            StorageSecurity::Authenticated,
            StorageSecurity::Insecure,
        ] {
            for tpm in [TpmUse::Required, TpmUse::BestEffort, TpmUse::Disabled] {
                let (storage, tpm) = (storage_policy(storage), tpm_mode(tpm));
                let bytes = bootstrap_file(&owner, storage, tpm, &domain, &labels);
                match Parameters::parse(&bytes).unwrap().cluster {
                    ClusterParameters::Bootstrap(found) => {
                        assert_eq!(found.owner, owner);
                        assert_eq!((found.storage_policy, found.tpm_mode), (storage, tpm));
                        assert_eq!((&found.domain, &found.labels), (&domain, &labels));
                        assert!(found.label_faults.is_empty());
                    }
                    ClusterParameters::Register(_) => unreachable!("bootstrap was written"),
                }
            }
        }
    }

    #[test]
    fn every_bad_label_is_named() {
        let texts = ["good=1", "no-value", "good=2", "-x=y", "line=a\nb"].map(str::to_owned);
        let failure = format!("{:?}", parse_labels(&texts).unwrap_err());
        for bad in ["no-value", "good=2", "-x=y", "line=a"] {
            assert!(failure.contains(bad), "{bad} is missing in {failure}");
        }
        assert!(!failure.contains("good=1"));
    }

    #[test]
    fn a_file_is_only_replaced_when_told_so() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.pb");
        assert_eq!(write_output(&path, b"one", MODE, Existing::Keep).unwrap(), Written::New);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(write_output(&path, b"one", MODE, Existing::Keep).unwrap(), Written::Same);
        for other in [&b"two"[..], b"on", b"one more"] {
            assert!(matches!(write_output(&path, other, MODE, Existing::Keep), Err(WriteOutputError::Differs { .. })));
        }
        assert_eq!(fs::read(&path).unwrap(), b"one");
        assert_eq!(write_output(&path, b"two", MODE, Existing::Replace).unwrap(), Written::New);
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert!(matches!(
            write_output(directory.path(), b"x", MODE, Existing::Replace),
            Err(WriteOutputError::Write { .. })
        ));
    }
}
