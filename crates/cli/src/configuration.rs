//! The configuration directory of an operator: the owner's key, the certificate that a cluster gave for it, and that
//! cluster's CA, in the files of `metroctl` (metropolis.md J.7), so that both clients share them.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use polis_identity::{
    AuthorityCertificate, Certificate, NotAUserError, NotAnAuthorityError, OwnerKey, ParseCertificatePemError,
    verify_certificate_authority, verify_user_in_cluster,
};

use crate::arguments::ConfigurationArguments;
use crate::atomic_file::{self, Existing};
use crate::failure::Failure;
use crate::owner::{self, read_owner_key};
use crate::{bounded_file, shell};

/// Name of the owner's certificate.
pub(crate) const CERTIFICATE_FILE: &str = "owner.pem";

/// Name of the certificate of the cluster's CA.
pub(crate) const AUTHORITY_FILE: &str = "ca.pem";

/// Name of the key that is to take the owner key's place, while that is not sure yet.
const NEXT_KEY_FILE: &str = "owner-key-next.pem";

/// Mode of the owner's certificate (metropolis.md J.7).
const CERTIFICATE_MODE: u32 = 0o644;

/// Mode of the CA's certificate (metropolis.md J.7). It is no secret, but whoever may change it chooses the cluster.
const AUTHORITY_MODE: u32 = 0o600;

/// Mode of a directory that is made here: it holds private keys.
const DIRECTORY_MODE: u32 = 0o700;

/// Name of the directory below the user's configuration.
const NAME: &str = "metroctl";

/// Largest certificate file that is read, in bytes: one has some hundreds, and text may stand before it.
const MAX_SIZE: u64 = 64 * 1024;

/// A configuration directory. Nothing needs to be there yet.
#[derive(Clone, Debug)]
pub(crate) struct Configuration {
    path: PathBuf,
    /// The option that leads later commands here; empty for the default and for what the environment says.
    option: String,
}

/// What makes its holder the owner of a cluster.
pub(crate) struct Credentials {
    pub(crate) key: OwnerKey,
    pub(crate) certificate: Certificate,
}

/// Why a certificate of the configuration directory is not usable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadCertificateError {
    #[error("{} could not be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is no certificate", path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: ParseCertificatePemError,
    },
    #[error("{} is not the certificate of a cluster CA", path.display())]
    NotAnAuthority {
        path: PathBuf,
        #[source]
        source: NotAnAuthorityError,
    },
}

impl Configuration {
    /// The directory that the arguments mean: the given one, else `$XDG_CONFIG_HOME/metroctl`, else `~/.config/metroctl`.
    ///
    /// # Errors
    ///
    /// When none is given and the environment names no home.
    pub(crate) fn resolve(arguments: &ConfigurationArguments) -> Result<Self, Failure> {
        let path = resolve(arguments.config.as_deref(), |name| std::env::var_os(name)).ok_or_else(|| {
            Failure::usage("it is not known where the configuration lies")
                .because_of("neither XDG_CONFIG_HOME nor HOME is set")
                .hint("name a directory with --config DIR")
        })?;
        let from_environment = std::env::var_os("POLIS_CONFIG").is_some_and(|value| value == *path);
        let option = match &arguments.config {
            Some(given) if !from_environment => format!(" --config {}", shell::quote(given)),
            Some(_) | None => String::new(),
        };
        Ok(Self { path, option })
    }

    /// ` --config DIR` for commands that are to be pasted, or nothing where it is not needed.
    pub(crate) fn option(&self) -> &str {
        &self.option
    }

    pub(crate) fn key_path(&self) -> PathBuf {
        self.path.join(owner::OWNER_KEY_FILE)
    }

    pub(crate) fn next_key_path(&self) -> PathBuf {
        self.path.join(NEXT_KEY_FILE)
    }

    pub(crate) fn certificate_path(&self) -> PathBuf {
        self.path.join(CERTIFICATE_FILE)
    }

    pub(crate) fn authority_path(&self) -> PathBuf {
        self.path.join(AUTHORITY_FILE)
    }

    /// The owner key.
    ///
    /// # Errors
    ///
    /// When there is none, or it cannot be used.
    pub(crate) fn key(&self) -> Result<OwnerKey, Failure> {
        let path = self.key_path();
        read_owner_key(&path).map_err(|error| owner::failure(&error, &path))
    }

    /// The owner's certificate; `None` when there is none yet.
    ///
    /// # Errors
    ///
    /// When what is there is not a certificate.
    pub(crate) fn certificate(&self) -> Result<Option<Certificate>, ReadCertificateError> {
        read_certificate(&self.certificate_path())
    }

    /// The certificate of the cluster's CA; `None` when none was kept yet.
    ///
    /// # Errors
    ///
    /// When what is there is not the certificate of a CA.
    pub(crate) fn authority(&self) -> Result<Option<AuthorityCertificate>, ReadCertificateError> {
        let path = self.authority_path();
        let Some(certificate) = read_certificate(&path)? else { return Ok(None) };
        verify_certificate_authority(certificate)
            .map(Some)
            .map_err(|source| ReadCertificateError::NotAnAuthority { path, source })
    }

    /// Key and certificate with which the owner is known to the cluster of `authority`.
    ///
    /// # Errors
    ///
    /// When one of them is missing or damaged, or they do not belong together.
    pub(crate) fn credentials(&self, authority: &AuthorityCertificate) -> Result<Credentials, Failure> {
        let key = self.key()?;
        let path = self.certificate_path();
        let take_ownership =
            || format!("get it from the cluster: polis cluster takeownership{} --endpoints ADDR", self.option);
        let certificate = self
            .certificate()
            .map_err(|error| Failure::of(&error).hint(format!("move it away, then {}", take_ownership())))?;
        let Some(certificate) = certificate else {
            return Err(Failure::usage(format!("there is no owner certificate at {}", path.display()))
                .because_of("the cluster answers these questions to its owner only")
                .hint(take_ownership()));
        };
        let user = verify_user_in_cluster(&certificate, authority).map_err(|error| {
            let failure = Failure::usage(format!("{} is not of this cluster", path.display())).because(&error);
            match error {
                NotAUserError::NotInCluster { .. } => failure.hint(format!(
                    "the configuration holds the certificate of one cluster and the CA of another ({}).\n\
                     Name the directory of the right one with --config DIR",
                    self.authority_path().display()
                )),
                NotAUserError::NotForClients | NotAUserError::NoName => failure.hint(take_ownership()),
            }
        })?;
        if user.public_key != key.public() {
            return Err(Failure::usage(format!(
                "{} and {} do not belong together",
                self.key_path().display(),
                path.display()
            ))
            .because_of(format!("the key is {}, the certificate is for {}", key.public(), user.public_key))
            .hint(take_ownership()));
        }
        Ok(Credentials { key, certificate })
    }

    /// Keeps the owner's certificate, in place of any that is there.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn keep_certificate(&self, certificate: &Certificate) -> Result<(), Failure> {
        self.keep(&self.certificate_path(), &certificate.pem(), CERTIFICATE_MODE)
    }

    /// Keeps the certificate of the cluster's CA, in place of any that is there.
    ///
    /// # Errors
    ///
    /// When the system refuses.
    pub(crate) fn keep_authority(&self, authority: &AuthorityCertificate) -> Result<(), Failure> {
        self.keep(&self.authority_path(), &authority.pem(), AUTHORITY_MODE)
    }

    fn keep(&self, path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
        let made = DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(&self.path);
        made.and_then(|()| atomic_file::write(path, text.as_bytes(), mode, Existing::Replace)).map_err(|error| {
            Failure::failed(format!("{} could not be written", path.display()))
                .because(&error)
                .hint("check the path, its permissions and the room on its disk")
        })
    }
}

fn read_certificate(path: &Path) -> Result<Option<Certificate>, ReadCertificateError> {
    let bytes = match bounded_file::read(path, MAX_SIZE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(|source| ReadCertificateError::Read { path: path.to_owned(), source })?,
    };
    // What is not text is no PEM either, and the parser says so.
    Certificate::from_pem(&String::from_utf8_lossy(&bytes))
        .map(Some)
        .map_err(|source| ReadCertificateError::Damaged { path: path.to_owned(), source })
}

fn resolve(given: Option<&Path>, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(given) = given {
        return Some(given.to_owned());
    }
    // The XDG specification says that a relative path is to be ignored.
    let absolute = |name: &str| environment(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config"))).map(|base| base.join(NAME))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority};

    use super::*;
    use crate::owner::create_key;

    fn configuration(path: &Path) -> Configuration {
        Configuration { path: path.join("deep/er"), option: " --config D".into() }
    }

    #[test]
    fn the_first_that_is_set_wins() {
        let check = |given: Option<&str>, config: &str, home: &str, expect: Option<&str>| {
            let environment = |name: &str| {
                let value = if name == "HOME" { home } else { config };
                (!value.is_empty()).then(|| OsString::from(value))
            };
            assert_eq!(resolve(given.map(Path::new), environment), expect.map(PathBuf::from));
        };
        check(Some("here"), "/c", "/h", Some("here"));
        check(None, "/c", "/h", Some("/c/metroctl"));
        check(None, "relative", "/h", Some("/h/.config/metroctl"));
        check(None, "", "/h", Some("/h/.config/metroctl"));
        check(None, "", "", None);
    }

    #[test]
    fn what_is_kept_is_found_again_with_the_modes_of_metroctl() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = configuration(directory.path());
        assert!(configuration.authority().unwrap().is_none() && configuration.certificate().unwrap().is_none());
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        configuration.keep_authority(authority.certificate()).unwrap();
        let key = create_key(&configuration.key_path()).unwrap().key;
        let certificate = authority.issue_user("owner", &key).unwrap();
        configuration.keep_certificate(&certificate).unwrap();

        assert_eq!(configuration.authority().unwrap().as_ref(), Some(authority.certificate()));
        let credentials = configuration.credentials(authority.certificate()).unwrap();
        assert_eq!((credentials.certificate, credentials.key.public()), (certificate, key));
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(configuration.authority_path()), 0o600);
        assert_eq!(mode(configuration.certificate_path()), 0o644);
        assert_eq!(mode(configuration.path.clone()), 0o700);
    }

    #[test]
    fn files_that_do_not_belong_together_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let configuration = configuration(directory.path());
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let check = |parts: &[&str]| {
            let failure = format!("{:?}", configuration.credentials(authority.certificate()).err().unwrap());
            for part in parts {
                assert!(failure.contains(part), "{part:?} is missing in {failure}");
            }
        };
        check(&["there is no owner key at", "polis owner create"]);
        let key = create_key(&configuration.key_path()).unwrap().key;
        check(&["there is no owner certificate at", "polis cluster takeownership --config D"]);
        let foreign = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        configuration.keep_certificate(&foreign.issue_user("owner", &key).unwrap()).unwrap();
        check(&["is not of this cluster", "the CA of another"]);
        let other = OwnerKey::generate().public();
        configuration.keep_certificate(&authority.issue_user("owner", &other).unwrap()).unwrap();
        check(&["do not belong together", &other.to_string()]);
        configuration.keep_certificate(&authority.issue_node(&key)).unwrap();
        check(&["is not of this cluster"]);
        fs::write(configuration.certificate_path(), "").unwrap();
        check(&["is no certificate", "move it away"]);
    }
}
