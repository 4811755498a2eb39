//! Parameters that `NodeParameters` has no field for.

use std::path::{Path, PathBuf};

use polis_proto::recovery;
use polis_recovery::{ParsePublicKeyError, RecoveryPublicKey};
use prost::Message as _;

/// Name of the file that holds them, beside the parameters (cold-start.md, Recovery key).
pub const OWN_FILE_NAME: &str = "polis.pb";

/// Parameters that `NodeParameters` has no field for: the content of [`OWN_FILE_NAME`].
///
/// Its bytes may be appended to those of a parameters file: both are then read from the same bytes, and whoever knows
/// `NodeParameters` alone leaves these out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnParameters {
    /// Public half of the recovery key of the cluster that is made.
    pub recovery_key: RecoveryPublicKey,
}

/// Where the file is that goes with the parameters at `path`.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    path.with_file_name(OWN_FILE_NAME)
}

impl OwnParameters {
    /// The bytes of the file.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        recovery::Parameters { recovery_key: self.recovery_key.to_text() }.encode_to_vec()
    }

    /// Parses the bytes of the file. A file that is there has something to say: one that says nothing was damaged, or is of a version
    /// of Polis that says it otherwise.
    ///
    /// # Errors
    ///
    /// What is wrong with them.
    pub fn parse(bytes: &[u8]) -> Result<Self, OwnParametersError> {
        Self::appended_to(bytes)?.ok_or(OwnParametersError::Nothing)
    }

    /// Parses what is appended to the bytes of a parameters file, if anything is.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub(crate) fn appended_to(bytes: &[u8]) -> Result<Option<Self>, OwnParametersError> {
        let message = recovery::Parameters::decode(bytes).map_err(OwnParametersError::Malformed)?;
        if message.recovery_key.is_empty() {
            return Ok(None);
        }
        let recovery_key =
            RecoveryPublicKey::from_text(&message.recovery_key).map_err(OwnParametersError::RecoveryKey)?;
        // No editor has had this text in its hands.
        if message.recovery_key != recovery_key.to_text() {
            return Err(OwnParametersError::RecoveryKey(ParsePublicKeyError::Changed));
        }
        Ok(Some(Self { recovery_key }))
    }
}

/// Why bytes are not usable as [`OwnParameters`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnParametersError {
    /// They are no message.
    #[error("it is not what `polis parameters bootstrap --recovery-key` writes, or was cut short")]
    Malformed(#[source] prost::DecodeError),
    /// They hold nothing that this build knows.
    #[error("it holds no recovery key: it was damaged, or is of another version of Polis")]
    Nothing,
    /// The recovery key is bad.
    #[error(
        "the recovery key in it is not usable; make the file anew with `polis parameters bootstrap --recovery-key`"
    )]
    RecoveryKey(#[source] ParsePublicKeyError),
}

#[cfg(test)]
mod tests {
    use polis_identity::OwnerKey;
    use polis_proto::api::{NodeParameters, node_parameters};
    use polis_recovery::RecoveryKey;
    use proptest::prelude::*;

    use super::*;
    use crate::{ClusterParameters, Parameters, ParametersError};

    fn own() -> OwnParameters {
        OwnParameters { recovery_key: RecoveryKey::generate().public() }
    }

    fn bootstrap() -> Vec<u8> {
        let bootstrap = node_parameters::ClusterBootstrap {
            owner_public_key: OwnerKey::generate().public().as_bytes().to_vec(),
            ..Default::default()
        };
        let cluster = Some(node_parameters::Cluster::ClusterBootstrap(bootstrap));
        NodeParameters { cluster, network_config: None }.encode_to_vec()
    }

    fn recovery_key(bytes: &[u8]) -> Option<RecoveryPublicKey> {
        match Parameters::parse(bytes).unwrap().cluster {
            ClusterParameters::Bootstrap(bootstrap) => bootstrap.recovery_key,
            ClusterParameters::Register(_) => unreachable!("bootstrap was written"),
        }
    }

    #[test]
    fn the_file_lies_beside_the_parameters() {
        for (path, expect) in
            [("/a/b/node.pb", "/a/b/polis.pb"), ("node.pb", "polis.pb"), ("/esp/parameters.pb", "/esp/polis.pb")]
        {
            assert_eq!(beside(Path::new(path)), Path::new(expect));
        }
    }

    #[test]
    fn both_are_read_from_the_same_bytes() {
        let (own, parameters) = (own(), bootstrap());
        assert_eq!(OwnParameters::parse(&own.to_bytes()), Ok(own));
        assert_eq!(recovery_key(&parameters), None);
        let both = [parameters.clone(), own.to_bytes()].concat();
        assert_eq!(recovery_key(&both), Some(own.recovery_key));
        // Others, who know nothing of ours, read what they read without it.
        assert!(NodeParameters::decode(&both[..]).unwrap() == NodeParameters::decode(&parameters[..]).unwrap());
    }

    #[test]
    fn a_file_that_says_nothing_good_is_refused() {
        let unknown = recovery::Parameters { recovery_key: "a key".into() }.encode_to_vec();
        assert_eq!(OwnParameters::parse(b""), Err(OwnParametersError::Nothing));
        assert_eq!(OwnParameters::parse(&bootstrap()), Err(OwnParametersError::Nothing));
        assert!(matches!(OwnParameters::parse(b"\xff"), Err(OwnParametersError::Malformed(_))));
        assert!(matches!(OwnParameters::parse(&unknown), Err(OwnParametersError::RecoveryKey(_))));
        let both = [bootstrap(), unknown].concat();
        assert!(matches!(Parameters::parse(&both), Err(ParametersError::Own(OwnParametersError::RecoveryKey(_)))));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_and_any_cut_is_refused(position: prop::sample::Index, bit in 0..8_u8) {
            let own = own();
            let mut bytes = own.to_bytes();
            let position = position.index(bytes.len());
            let cut = OwnParameters::parse(&bytes[..position]);
            prop_assert!(cut.is_err(), "{:?}", cut);
            bytes[position] ^= 1 << bit;
            let flipped = OwnParameters::parse(&bytes);
            prop_assert!(flipped.is_err(), "{:?}", flipped);
        }
    }
}
