//! The manifest of an image, as an OCI artifact (OCI image specification 1.1, guidelines for artifacts).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What kind of artifact an image of a machine is.
pub const ARTIFACT_TYPE: &str = "application/vnd.polis.machine.image.v1";
/// Media type of its one part: a unified kernel image for x86-64 UEFI, which has the whole system in it.
pub const KERNEL_TYPE: &str = "application/vnd.polis.machine.kernel.v1+efi";

/// Media type of a manifest.
pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
/// Media type of the configuration of an artifact that has none.
const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
/// The content of such a configuration.
pub(crate) const EMPTY: &[u8] = b"{}";
/// The annotation with the version (OCI image specification, pre-defined keys).
const VERSION: &str = "org.opencontainers.image.version";
/// Version of the form, always 2.
const SCHEMA: u32 = 2;
/// Longest manifest in bytes. One of ours has about 700; others have more annotations.
pub(crate) const LONGEST_MANIFEST: u64 = 64 * 1024;

/// What a manifest says of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Version of the Polis in it, for people; empty when it is not told.
    pub(crate) version: String,
    /// The unified kernel image.
    pub(crate) kernel: Digest,
    /// Its size in bytes.
    pub(crate) size: u64,
}

/// Why a manifest is not that of an image.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not JSON of that form.
    #[error("it is no OCI manifest")]
    Form(#[source] serde_json::Error),
    /// It has a form of another time.
    #[error("it is no OCI manifest of version {SCHEMA}")]
    Schema,
    /// It is something else.
    #[error("it is an artifact of the type {found:?}, and an image of a machine is {ARTIFACT_TYPE:?}")]
    Artifact {
        /// What it says it is.
        found: String,
    },
    /// It has not the one part that it should have.
    #[error("it has {found} parts of the type {KERNEL_TYPE:?}, and an image has one")]
    Parts {
        /// How many.
        found: usize,
    },
    /// The digest of the part.
    #[error("its part cannot be named")]
    Digest(#[source] crate::InvalidDigest),
}

impl Manifest {
    /// Reads the bytes of a manifest.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        let form: Form = serde_json::from_slice(bytes).map_err(ManifestError::Form)?;
        if form.schema_version != SCHEMA {
            return Err(ManifestError::Schema);
        }
        if form.artifact_type != ARTIFACT_TYPE {
            return Err(ManifestError::Artifact { found: form.artifact_type });
        }
        let mut kernels = form.layers.iter().filter(|layer| layer.media_type == KERNEL_TYPE);
        let (Some(kernel), None) = (kernels.next(), kernels.next()) else {
            let found = form.layers.iter().filter(|layer| layer.media_type == KERNEL_TYPE).count();
            return Err(ManifestError::Parts { found });
        };
        Ok(Self {
            version: form.annotations.get(VERSION).cloned().unwrap_or_default(),
            kernel: kernel.digest.parse().map_err(ManifestError::Digest)?,
            size: kernel.size,
        })
    }

    /// The bytes of the manifest: the same for the same image.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let form = Form {
            schema_version: SCHEMA,
            media_type: Some(MANIFEST_TYPE.to_owned()),
            artifact_type: ARTIFACT_TYPE.to_owned(),
            config: Some(Descriptor::of(EMPTY_TYPE, Digest::of(EMPTY), EMPTY.len() as u64)),
            layers: vec![Descriptor::of(KERNEL_TYPE, self.kernel, self.size)],
            annotations: BTreeMap::from([(VERSION.to_owned(), self.version.clone())]),
        };
        // Texts, numbers and maps with texts as keys always have a form as JSON.
        serde_json::to_vec(&form).unwrap_or_default()
    }
}

/// What names content (OCI image specification, descriptors).
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    artifact_type: Option<String>,
}

impl Descriptor {
    fn of(media_type: &str, digest: Digest, size: u64) -> Self {
        Self { media_type: media_type.to_owned(), digest: digest.to_string(), size, artifact_type: None }
    }

    /// What names a manifest of an image.
    pub(crate) fn of_manifest(bytes: &[u8]) -> Self {
        let artifact_type = Some(ARTIFACT_TYPE.to_owned());
        Self { artifact_type, ..Self::of(MANIFEST_TYPE, Digest::of(bytes), bytes.len() as u64) }
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Form {
    schema_version: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    media_type: Option<String>,
    #[serde(default)]
    artifact_type: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_says_what_was_said() {
        let manifest = Manifest { version: "1.2.3".into(), kernel: Digest::of(b"kernel"), size: 6 };
        assert_eq!(Manifest::parse(&manifest.to_bytes()).unwrap(), manifest);
        assert!(manifest.to_bytes().len() < 1000);
    }

    #[test]
    fn other_manifests_are_told_apart() {
        let check = |text: &str, expected: &str| {
            let message = Manifest::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        };
        check("<html>", "no OCI manifest");
        check(r#"{"schemaVersion":1}"#, "version 2");
        check(r#"{"schemaVersion":2,"layers":[]}"#, "type \"\"");
        check(r#"{"schemaVersion":2,"artifactType":"x"}"#, "type \"x\"");
        let with =
            |layers: &str| format!(r#"{{"schemaVersion":2,"artifactType":"{ARTIFACT_TYPE}","layers":[{layers}]}}"#);
        let layer = format!(r#"{{"mediaType":"{KERNEL_TYPE}","digest":"sha256:00","size":1}}"#);
        check(&with(""), "0 parts");
        check(&with(&format!("{layer},{layer}")), "2 parts");
        check(&with(&layer), "cannot be named");
        check(&with(&layer.replace(":1}", ":-1}")), "no OCI manifest");
    }
}
