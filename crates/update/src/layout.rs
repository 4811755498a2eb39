//! [`ImageLayout`]: an image as files that can be served.
//!
//! | file | what it is |
//! |---|---|
//! | `oci-layout`, `index.json`, `blobs/sha256/*` | an OCI image layout, which tools copy to a registry |
//! | `v2/REPOSITORY/manifests/DIGEST`, `v2/REPOSITORY/blobs/DIGEST` | links to the same: a web server of files is a registry to read from |

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::digest::Digest;
use crate::manifest::{Descriptor, EMPTY, Manifest};
use crate::reference::ImageReference;

/// Version of the layout (OCI image layout specification).
const LAYOUT: &[u8] = br#"{"imageLayoutVersion":"1.0.0"}"#;

/// An image that is to be published.
#[derive(Clone, Debug)]
pub struct ImageLayout<'a> {
    /// The unified kernel image.
    pub image: &'a [u8],
    /// Version of the Polis in it, for people.
    pub version: &'a str,
    /// Name of the repository under which it can be served as files.
    pub repository: &'a str,
}

/// Why it was not written.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// There is something.
    #[error("{} is there already, and nothing is replaced", path.display())]
    Exists {
        /// The place.
        path: PathBuf,
    },
    /// The repository is none.
    #[error(transparent)]
    Repository(crate::InvalidReference),
    /// It is not an EFI program.
    #[error("it is no unified kernel image: it does not begin as an EFI program does")]
    NotImage,
    /// No node would take it.
    #[error("it has {size} bytes, and nodes take images of at most {} bytes", polis_image::LONGEST_IMAGE)]
    TooLong {
        /// Bytes.
        size: usize,
    },
    /// A file.
    #[error("{} cannot be written", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    schema_version: u32,
    media_type: &'static str,
    manifests: Vec<Descriptor>,
}

impl ImageLayout<'_> {
    /// Writes it into a directory that is not there yet, whole or not at all, and returns the digest of the manifest, by which nodes are
    /// told to fetch it. The same image gives the same files.
    ///
    /// # Errors
    ///
    /// When there is something already, it is no image, or it cannot be written.
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever publishes has the image still; a half-written directory never gets the name"
    )]
    pub fn write(&self, directory: &Path) -> Result<Digest, LayoutError> {
        ImageReference::check_repository(self.repository).map_err(LayoutError::Repository)?;
        if !self.image.starts_with(b"MZ") {
            return Err(LayoutError::NotImage);
        }
        if self.image.len() as u64 > polis_image::LONGEST_IMAGE {
            return Err(LayoutError::TooLong { size: self.image.len() });
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| LayoutError::Write { path, source }
        };
        if directory.symlink_metadata().is_ok() {
            return Err(LayoutError::Exists { path: directory.to_owned() });
        }
        // A name without a directory in front of it is in the present one.
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let work = tempfile::Builder::new().prefix(".polis-artifact-").tempdir_in(parent).map_err(failed(parent))?;
        let digest = self.write_into(work.path())?;
        fs::rename(work.path(), directory).map_err(failed(directory))?;
        // Nothing is left to be removed.
        let _ = work.keep();
        Ok(digest)
    }

    fn write_into(&self, directory: &Path) -> Result<Digest, LayoutError> {
        let manifest = Manifest {
            version: self.version.to_owned(),
            kernel: Digest::of(self.image),
            size: self.image.len() as u64,
        };
        let manifest_bytes = manifest.to_bytes();
        let digest = Digest::of(&manifest_bytes);
        let index = Index {
            schema_version: 2,
            media_type: "application/vnd.oci.image.index.v1+json",
            manifests: vec![Descriptor::of_manifest(&manifest_bytes)],
        };
        // Texts and numbers always have a form as JSON.
        let index = serde_json::to_vec(&index).unwrap_or_default();
        let blob = |digest: Digest| PathBuf::from("blobs/sha256").join(digest.hex());
        put(directory, &blob(manifest.kernel), self.image)?;
        put(directory, &blob(Digest::of(EMPTY)), EMPTY)?;
        put(directory, &blob(digest), &manifest_bytes)?;
        let served = Path::new("v2").join(self.repository);
        // From the directory of the link up to the top.
        let up: PathBuf = std::iter::repeat_n("..", served.components().count() + 1).collect();
        for (kind, digest) in [("manifests", digest), ("blobs", manifest.kernel), ("blobs", Digest::of(EMPTY))] {
            let place = directory.join(&served).join(kind);
            let link = place.join(digest.to_string());
            fs::create_dir_all(&place)
                .and_then(|()| symlink(up.join(blob(digest)), &link))
                .map_err(|source| LayoutError::Write { path: link, source })?;
        }
        put(directory, Path::new("oci-layout"), LAYOUT)?;
        put(directory, Path::new("index.json"), &index)?;
        make_readable(directory)?;
        Ok(digest)
    }
}

/// A directory for work is for its owner alone, and what is published is for whoever serves it.
fn make_readable(directory: &Path) -> Result<(), LayoutError> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
        .map_err(|source| LayoutError::Write { path: directory.to_owned(), source })
}

fn put(directory: &Path, path: &Path, content: &[u8]) -> Result<(), LayoutError> {
    let path = directory.join(path);
    let write = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        let mut file = fs::File::create_new(&path)?;
        file.write_all(content)?;
        file.sync_all()
    };
    write().map_err(|source| LayoutError::Write { path: path.clone(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(image: &[u8]) -> ImageLayout<'_> {
        ImageLayout { image, version: "1.2.3", repository: "a/polis" }
    }

    #[test]
    fn everything_is_named_by_its_digest_and_served_under_it() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("artifact");
        let digest = layout(b"MZ image").write(&directory).unwrap();
        let mut count = 0;
        for blob in fs::read_dir(directory.join("blobs/sha256")).unwrap() {
            let blob = blob.unwrap();
            let name = blob.file_name().into_string().unwrap();
            assert_eq!(Digest::of(&fs::read(blob.path()).unwrap()).hex(), name);
            count += 1;
        }
        assert_eq!(count, 3);
        let manifest = fs::read(directory.join(format!("v2/a/polis/manifests/{digest}"))).unwrap();
        assert_eq!(Digest::of(&manifest), digest);
        let kernel = Manifest::parse(&manifest).unwrap().kernel;
        assert_eq!(fs::read(directory.join(format!("v2/a/polis/blobs/{kernel}"))).unwrap(), b"MZ image");
        let index = fs::read_to_string(directory.join("index.json")).unwrap();
        assert!(index.contains(&digest.to_string()) && index.contains("\"schemaVersion\":2"), "{index}");
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1);

        let again = place.path().join("again");
        assert_eq!(layout(b"MZ image").write(&again).unwrap(), digest);
        assert_eq!(fs::read(again.join("index.json")).unwrap(), index.as_bytes());
    }

    #[test]
    fn nothing_is_replaced_and_nothing_else_is_published() {
        let place = tempfile::tempdir().unwrap();
        let error = layout(b"MZ image").write(place.path()).unwrap_err();
        assert!(matches!(error, LayoutError::Exists { .. }));
        let directory = place.path().join("artifact");
        assert!(matches!(layout(b"no image").write(&directory), Err(LayoutError::NotImage)));
        let long = [b"MZ".as_slice(), &vec![0; polis_image::LONGEST_IMAGE as usize]].concat();
        assert!(matches!(layout(&long).write(&directory), Err(LayoutError::TooLong { .. })));
        let elsewhere = ImageLayout { repository: "../up", ..layout(b"MZ image") };
        assert!(matches!(elsewhere.write(&directory), Err(LayoutError::Repository(_))));
        let nowhere = place.path().join("no/such/place");
        assert!(matches!(layout(b"MZ image").write(&nowhere), Err(LayoutError::Write { .. })));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
