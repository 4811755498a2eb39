//! OpenSSL's command line, in a directory of its own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use polis_identity::{AuthorityKey, Certificate, PrivateKey, Purpose};
use polis_secret::Secret32;
use tempfile::TempDir;

/// A directory with keys and certificates in PEM: key `name` is in `name.key`, its certificate in `name.pem`.
pub(crate) struct OpenSsl {
    directory: TempDir,
}

impl OpenSsl {
    pub(crate) fn new() -> Self {
        Self { directory: TempDir::new().unwrap() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    pub(crate) fn write(&self, file: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(file), content).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap()
    }

    /// Runs `openssl` with the arguments, separated by blanks, and returns its exit status and what it wrote.
    pub(crate) fn try_run(&self, arguments: &str) -> (bool, String) {
        let output = Command::new("openssl")
            .args(arguments.split_ascii_whitespace())
            .current_dir(self.directory.path())
            .env_remove("OPENSSL_CONF")
            .output()
            .unwrap_or_else(|error| {
                panic!("this test needs the command `openssl` ({error}): sudo apt-get install --yes openssl")
            });
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (output.status.success(), text)
    }

    /// Runs `openssl` and returns what it wrote; it must succeed.
    pub(crate) fn run(&self, arguments: &str) -> String {
        let (success, text) = self.try_run(arguments);
        assert!(success, "openssl {arguments}: {text}");
        text
    }

    /// Makes the key `name`.
    pub(crate) fn key(&self, name: &str, kind: Kind) {
        match kind {
            Kind::Ed25519 => self.run(&format!("genpkey -algorithm ed25519 -out {name}.key")),
            Kind::Ec => self.run(&format!("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key")),
        };
    }

    /// Gives openssl one of our keys as the key `name`.
    pub(crate) fn our_key<P: Purpose>(&self, name: &str, key: &PrivateKey<P>) {
        self.write(&format!("{name}.key"), key.pkcs8_pem());
    }

    /// Makes a certificate for the key `name`, signed by itself, with the subject and the extensions as openssl's
    /// configuration writes them.
    pub(crate) fn self_signed(&self, name: &str, subject: &Subject, extensions: &str) -> Certificate {
        self.write("self.cnf", subject.configuration(extensions));
        self.run(&format!("req -x509 -new -key {name}.key -days 3650 -config self.cnf -out {name}.pem"));
        self.certificate(name)
    }

    /// Makes a certificate for the key `name`, signed by the authority `issuer`.
    pub(crate) fn signed_by(&self, issuer: &str, name: &str, subject: &Subject, extensions: &str) -> Certificate {
        self.write("request.cnf", subject.configuration(""));
        self.run(&format!("req -new -key {name}.key -config request.cnf -out {name}.csr"));
        self.write("extensions.cnf", extensions);
        self.run(&format!(
            "x509 -req -in {name}.csr -CA {issuer}.pem -CAkey {issuer}.key -set_serial 77 -days {days} -extfile \
             extensions.cnf -out {name}.pem",
            days = subject.days
        ));
        self.certificate(name)
    }

    pub(crate) fn certificate(&self, name: &str) -> Certificate {
        Certificate::from_pem(&self.read(&format!("{name}.pem"))).unwrap()
    }

    /// The Ed25519 key `name`, as one of ours.
    pub(crate) fn authority_key(&self, name: &str) -> AuthorityKey {
        self.run(&format!("pkey -in {name}.key -outform DER -out {name}.der"));
        let der = fs::read(self.path(&format!("{name}.der"))).unwrap();
        AuthorityKey::from_secret(Secret32::try_from(&der[der.len() - 32..]).unwrap())
    }
}

/// Kind of a key.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Ed25519,
    Ec,
}

/// Subject of a certificate that openssl makes.
pub(crate) struct Subject {
    /// Attributes, in openssl's configuration syntax.
    pub(crate) attributes: Vec<String>,
    /// Which string types openssl may use for them.
    pub(crate) string_mask: &'static str,
    /// Days for which the certificate is valid; negative for one that has expired.
    pub(crate) days: i32,
}

impl Subject {
    pub(crate) fn new(attributes: &[&str]) -> Self {
        let attributes = attributes.iter().map(|&attribute| attribute.to_owned()).collect();
        Self { attributes, string_mask: "utf8only", days: 3650 }
    }

    fn configuration(&self, extensions: &str) -> String {
        let section = if extensions.is_empty() { "" } else { "x509_extensions = extensions\n" };
        format!(
            "[req]\nprompt = no\nutf8 = yes\nstring_mask = {}\ndistinguished_name = subject\n{section}[subject]\n{}\n\
             [extensions]\n{extensions}\n",
            self.string_mask,
            self.attributes.join("\n")
        )
    }
}
