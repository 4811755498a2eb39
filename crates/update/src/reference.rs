//! [`ImageReference`]: where an image is, and which one it is.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use crate::digest::{Digest, InvalidDigest};

/// Longest host with its port, in bytes: a name of DNS has at most 253, and a port six.
const LONGEST_HOST: usize = 260;
/// Longest repository in bytes (OCI distribution specification: host and repository together 255).
const LONGEST_REPOSITORY: usize = 255;
/// Longest tag in bytes (OCI distribution specification).
const LONGEST_TAG: usize = 128;

/// An OCI artifact: `[http://|https://]HOST[:PORT]/REPOSITORY[:TAG]@sha256:DIGITS`. The digest alone says what it is; a tag is for people
/// and is not looked up. Without a scheme it is https.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageReference {
    scheme: &'static str,
    host: String,
    repository: String,
    tag: Option<String>,
    digest: Digest,
}

/// Why something is no reference to an image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidReference {
    /// Another scheme.
    #[error("the scheme {0:?} is not one that images can be fetched by: it must be http or https")]
    Scheme(String),
    /// The host.
    #[error("{0:?} is no host with an optional port, such as registry.example:5000")]
    Host(String),
    /// The repository.
    #[error("{0:?} is no repository: names of lower case letters, digits, and . _ - between them, joined by /")]
    Repository(String),
    /// The tag.
    #[error(
        "{0:?} is no tag: it has letters, digits, and . _ - after the first of them, and at most {LONGEST_TAG} in all"
    )]
    Tag(String),
    /// There is none, and a name without it may be something else tomorrow.
    #[error("it has no digest: an image is named by @sha256: and the digest that was shown when it was published")]
    NoDigest,
    /// The digest.
    #[error(transparent)]
    Digest(InvalidDigest),
    /// There is nothing between host and digest.
    #[error("it has no repository: it must be HOST/REPOSITORY@sha256:...")]
    NoRepository,
}

impl ImageReference {
    /// Puts one together from its parts, as they are in the wire contract: an empty scheme is https, an empty tag none.
    ///
    /// # Errors
    ///
    /// When a part is missing or is not what it should be.
    pub fn new(scheme: &str, host: &str, repository: &str, tag: &str, digest: &str) -> Result<Self, InvalidReference> {
        let scheme = match scheme {
            "http" => "http",
            "" | "https" => "https",
            other => return Err(InvalidReference::Scheme(other.to_owned())),
        };
        if !is_host(host) {
            return Err(InvalidReference::Host(host.to_owned()));
        }
        Self::check_repository(repository)?;
        if !tag.is_empty() && !is_tag(tag) {
            return Err(InvalidReference::Tag(tag.to_owned()));
        }
        if digest.is_empty() {
            return Err(InvalidReference::NoDigest);
        }
        let digest = digest.parse().map_err(InvalidReference::Digest)?;
        let tag = (!tag.is_empty()).then(|| tag.to_owned());
        Ok(Self { scheme, host: host.to_owned(), repository: repository.to_owned(), tag, digest })
    }

    /// Whether this can be the name of a repository.
    pub(crate) fn check_repository(text: &str) -> Result<(), InvalidReference> {
        if is_repository(text) { Ok(()) } else { Err(InvalidReference::Repository(text.to_owned())) }
    }

    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.scheme
    }

    /// Host, and port if it is not the usual one.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Path of the repository at the host.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// What people call this version.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Digest of the manifest.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Where the manifest is (OCI distribution specification, pulling manifests).
    pub(crate) fn manifest_url(&self) -> String {
        format!("{}://{}/v2/{}/manifests/{}", self.scheme, self.host, self.repository, self.digest)
    }

    /// Where content of the artifact is (OCI distribution specification, pulling blobs).
    pub(crate) fn blob_url(&self, digest: Digest) -> String {
        format!("{}://{}/v2/{}/blobs/{digest}", self.scheme, self.host, self.repository)
    }
}

impl fmt::Display for ImageReference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}/{}", self.scheme, self.host, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        write!(formatter, "@{}", self.digest)
    }
}

impl FromStr for ImageReference {
    type Err = InvalidReference;

    fn from_str(text: &str) -> Result<Self, InvalidReference> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        if text.contains("://") && scheme.is_empty() {
            return Err(InvalidReference::Scheme(String::new()));
        }
        let (name, digest) = rest.split_once('@').ok_or(InvalidReference::NoDigest)?;
        let (host, path) = name.split_once('/').ok_or(InvalidReference::NoRepository)?;
        let (repository, tag) = match path.rsplit_once(':') {
            Some((_, "")) => return Err(InvalidReference::Tag(String::new())),
            Some((repository, tag)) => (repository, tag),
            None => (path, ""),
        };
        Self::new(scheme, host, repository, tag, digest)
    }
}

fn is_host(text: &str) -> bool {
    if text.len() > LONGEST_HOST {
        return false;
    }
    let (name, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, rest)) => {
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':').unwrap_or("no port")) };
            return address.parse::<Ipv6Addr>().is_ok() && port.is_none_or(is_port);
        }
        None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
    };
    let label = |label: &str| {
        !label.is_empty()
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.split('.').all(label) && port.is_none_or(is_port)
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok_and(|port| port != 0)
}

fn is_repository(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let name = |name: &str| {
        name.bytes().all(|byte| letter(byte) || matches!(byte, b'.' | b'_' | b'-'))
            && name.bytes().next().is_some_and(letter)
            && name.bytes().last().is_some_and(letter)
            && !name.contains("..")
    };
    text.len() <= LONGEST_REPOSITORY && text.split('/').all(name)
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= LONGEST_TAG
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn what_people_write_is_read() {
        for (text, scheme, host, repository, tag) in [
            ("registry.example/polis", "https", "registry.example", "polis", None),
            ("registry.example:5000/a/b-c:v1.2", "https", "registry.example:5000", "a/b-c", Some("v1.2")),
            ("http://192.0.2.7:80/polis", "http", "192.0.2.7:80", "polis", None),
            ("https://[2001:db8::1]:443/polis:X_1", "https", "[2001:db8::1]:443", "polis", Some("X_1")),
            ("http://[2001:db8::1]/polis", "http", "[2001:db8::1]", "polis", None),
        ] {
            let reference: ImageReference = format!("{text}@{DIGEST}").parse().unwrap();
            assert_eq!(
                (reference.scheme(), reference.host(), reference.repository(), reference.tag()),
                (scheme, host, repository, tag)
            );
            assert_eq!(reference.to_string().parse(), Ok(reference.clone()));
        }
        let reference: ImageReference = format!("http://h/r@{DIGEST}").parse().unwrap();
        assert_eq!(reference.manifest_url(), format!("http://h/v2/r/manifests/{DIGEST}"));
        assert_eq!(reference.blob_url(Digest::of(b"")), format!("http://h/v2/r/blobs/{DIGEST}"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        use InvalidReference as Error;
        let text = |text: &str| text.to_owned();
        for (reference, expected) in [
            (text("registry.example/polis"), Error::NoDigest),
            (text("registry.example/polis:latest"), Error::NoDigest),
            (format!("registry.example@{DIGEST}"), Error::NoRepository),
            (format!("ftp://h/r@{DIGEST}"), Error::Scheme(text("ftp"))),
            (format!("://h/r@{DIGEST}"), Error::Scheme(text(""))),
            (format!("h:0/r@{DIGEST}"), Error::Host(text("h:0"))),
            (format!("h:99999/r@{DIGEST}"), Error::Host(text("h:99999"))),
            (format!("/r@{DIGEST}"), Error::Host(text(""))),
            (format!("-h/r@{DIGEST}"), Error::Host(text("-h"))),
            (format!("user:pass@h/r@{DIGEST}"), Error::NoRepository),
            (format!("h/Upper@{DIGEST}"), Error::Repository(text("Upper"))),
            (format!("h/a//b@{DIGEST}"), Error::Repository(text("a//b"))),
            (format!("h/../etc@{DIGEST}"), Error::Repository(text("../etc"))),
            (format!("h/r:@{DIGEST}"), Error::Tag(text(""))),
            (format!("h/r:-x@{DIGEST}"), Error::Tag(text("-x"))),
            (text("h/r@sha256:00"), Error::Digest(InvalidDigest { text: text("sha256:00") })),
            (text("h/r@"), Error::NoDigest),
        ] {
            assert_eq!(reference.parse::<ImageReference>(), Err(expected), "{reference}");
        }
    }

    proptest! {
        #[test]
        fn what_is_accepted_makes_a_url_with_the_same_parts(text in "(http://)?[a-z0-9.:\\[\\]-]{1,12}/[a-z0-9._/%?#-]{1,12}") {
            if let Ok(reference) = format!("{text}@{DIGEST}").parse::<ImageReference>() {
                let uri: http::Uri = reference.manifest_url().parse().expect("a reference is a part of a URL");
                prop_assert_eq!(uri.authority().map(http::uri::Authority::as_str), Some(reference.host()));
                let path = format!("/v2/{}/manifests/{}", reference.repository(), DIGEST);
                prop_assert_eq!(uri.path(), path);
            }
        }
    }
}
