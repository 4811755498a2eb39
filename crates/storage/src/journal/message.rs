//! The journal as a message: what it must hold in each phase is checked here, in both directions.

use polis_proto::storage;
use polis_proto::storage::journal as proto;
use polis_secret::Secret32;
use prost::Message as _;
use zeroize::{Zeroize as _, Zeroizing};

use super::{
    ClusterUnlockKey, EPOCH_FLOORS_LIMIT, Epoch, EpochFloor, Journal, PARAMETERS_LIMIT, Phase, StorageSecurity,
};
use crate::record::InvalidRecord;

/// Hexadecimal digits of a cluster id: 16 bytes.
const CLUSTER_ID_DIGITS: usize = 32;

/// A message whose secrets are wiped when it is dropped.
struct Wiped(storage::Journal);

impl Drop for Wiped {
    fn drop(&mut self) {
        let Self(message) = self;
        message.node_key.zeroize();
        message.join_key.zeroize();
        message.share_key.zeroize();
        message.node_unlock_key.zeroize();
        if let Some(key) = &mut message.cluster_unlock_key {
            key.current.zeroize();
            key.pending.zeroize();
        }
    }
}

impl Journal {
    /// The serialized message, not yet sealed: for the seal, or for a recovery blob, which holds the whole record.
    #[must_use]
    pub fn to_payload(&self) -> Zeroizing<Vec<u8>> {
        let (phase, removal_reason) = match &self.phase {
            Phase::Formattable => (proto::Phase::Formattable, None),
            Phase::Formatted => (proto::Phase::Formatted, None),
            Phase::Enrolled => (proto::Phase::Enrolled, None),
            Phase::Removed { reason } => (proto::Phase::Removed, Some(reason.clone())),
        };
        let storage_security = match self.storage_security {
            None => proto::StorageSecurity::Invalid,
            Some(StorageSecurity::Insecure) => proto::StorageSecurity::Insecure,
            Some(StorageSecurity::Encrypted) => proto::StorageSecurity::Encrypted,
            Some(StorageSecurity::AuthenticatedEncrypted) => proto::StorageSecurity::AuthenticatedEncrypted,
        };
        let message = Wiped(storage::Journal {
            phase: phase.into(),
            parameters: self.parameters.clone(),
            node_key: self.node_key.as_ref().map(bytes),
            join_key: bytes(&self.join_key),
            share_key: bytes(&self.share_key),
            node_unlock_key: self.node_unlock_key.as_ref().map(bytes),
            cluster_unlock_key: self.cluster_unlock_key.as_ref().map(|key| proto::ClusterUnlockKey {
                current: bytes(&key.current),
                pending: key.pending.as_ref().map(bytes),
            }),
            cluster_ca: self.cluster_ca.clone(),
            cluster_id: self.cluster_id.clone(),
            highest_epoch: self.highest_epoch.map(epoch_message),
            storage_security: storage_security.into(),
            epoch_floors: self
                .epoch_floors
                .iter()
                .map(|floor| proto::EpochFloor {
                    owner_node_id: floor.owner_node_id.clone(),
                    epoch: Some(epoch_message(floor.epoch)),
                })
                .collect(),
            node_public_key: self.node_public_key.to_vec(),
            removal_reason,
        });
        Zeroizing::new(message.0.encode_to_vec())
    }

    /// Reads a serialized message and checks it.
    ///
    /// # Errors
    ///
    /// When it is not a valid journal.
    pub fn from_payload(payload: &[u8]) -> Result<Self, InvalidRecord> {
        let message = Wiped(storage::Journal::decode(payload).map_err(InvalidRecord::NotAMessage)?);
        let message = &message.0;
        let journal = Self {
            phase: phase(message)?,
            parameters: message.parameters.clone(),
            node_key: message.node_key.as_deref().map(|key| secret("node_key", key)).transpose()?,
            node_public_key: message.node_public_key.as_slice().try_into().map_err(|_| {
                let length = message.node_public_key.len();
                InvalidRecord::field("node_public_key", format!("expected 32 bytes, found {length}"))
            })?,
            join_key: secret("join_key", &message.join_key)?,
            share_key: secret("share_key", &message.share_key)?,
            storage_security: storage_security(message)?,
            node_unlock_key: (message.node_unlock_key.as_deref())
                .map(|key| secret("node_unlock_key", key))
                .transpose()?,
            cluster_unlock_key: message.cluster_unlock_key.as_ref().map(cluster_unlock_key).transpose()?,
            cluster_ca: message.cluster_ca.clone(),
            cluster_id: message.cluster_id.clone(),
            highest_epoch: message.highest_epoch.map(epoch),
            epoch_floors: message.epoch_floors.iter().map(epoch_floor).collect::<Result<_, _>>()?,
        };
        journal.check()?;
        Ok(journal)
    }

    /// What the fields must be, alone and in each phase.
    fn check(&self) -> Result<(), InvalidRecord> {
        let wrong = |field, problem: &str| Err(InvalidRecord::field(field, problem));
        InvalidRecord::not_empty("parameters", &self.parameters)?;
        if self.parameters.len() > PARAMETERS_LIMIT {
            return wrong("parameters", "they are longer than is allowed");
        }
        if let Some(cluster_ca) = &self.cluster_ca {
            InvalidRecord::not_empty("cluster_ca", cluster_ca)?;
        }
        if let Some(id) = &self.cluster_id {
            let digits = id.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
            if id.len() != CLUSTER_ID_DIGITS || !digits {
                return wrong("cluster_id", "it is not 32 lowercase hexadecimal digits");
            }
        }
        if self.epoch_floors.len() > EPOCH_FLOORS_LIMIT {
            return wrong("epoch_floors", "there are more than are allowed");
        }
        let formatted = match &self.phase {
            Phase::Formattable if self.node_key.is_none() => {
                return wrong("node_key", "it is absent, and nothing else holds it before the data partition does");
            }
            Phase::Formattable => false,
            Phase::Formatted | Phase::Enrolled => true,
            Phase::Removed { reason } => {
                InvalidRecord::not_empty("removal_reason", reason.as_bytes())?;
                false
            }
        };
        match self.storage_security {
            None if formatted => wrong("storage_security", "it is absent, though the data partition is formatted"),
            Some(StorageSecurity::Insecure) if self.node_unlock_key.is_some() => {
                wrong("node_unlock_key", "it is present, though storage is insecure")
            }
            Some(StorageSecurity::Insecure) if self.cluster_unlock_key.is_some() => {
                wrong("cluster_unlock_key", "it is present, though storage is insecure")
            }
            Some(StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted)
                if formatted && self.node_unlock_key.is_none() =>
            {
                wrong("node_unlock_key", "it is absent, though the data partition is encrypted")
            }
            None
            | Some(StorageSecurity::Insecure | StorageSecurity::Encrypted | StorageSecurity::AuthenticatedEncrypted) => {
                Ok(())
            }
        }
    }
}

fn bytes(secret: &Secret32) -> Vec<u8> {
    secret.expose().to_vec()
}

fn secret(field: &'static str, bytes: &[u8]) -> Result<Secret32, InvalidRecord> {
    Secret32::try_from(bytes).map_err(|error| InvalidRecord::field(field, error))
}

fn phase(message: &storage::Journal) -> Result<Phase, InvalidRecord> {
    let number = message.phase;
    let phase = match proto::Phase::try_from(number) {
        Ok(proto::Phase::Formattable) => Phase::Formattable,
        Ok(proto::Phase::Formatted) => Phase::Formatted,
        Ok(proto::Phase::Enrolled) => Phase::Enrolled,
        Ok(proto::Phase::Removed) => Phase::Removed { reason: message.removal_reason.clone().unwrap_or_default() },
        Ok(proto::Phase::Invalid) => return Err(InvalidRecord::field("phase", "it is absent")),
        Err(_) => return Err(InvalidRecord::field("phase", format!("number {number} is unknown"))),
    };
    match (&phase, &message.removal_reason) {
        (Phase::Formattable | Phase::Formatted | Phase::Enrolled, Some(_)) => {
            Err(InvalidRecord::field("removal_reason", "it is present, though the node was not removed"))
        }
        (Phase::Formattable | Phase::Formatted | Phase::Enrolled, None) | (Phase::Removed { .. }, _) => Ok(phase),
    }
}

fn storage_security(message: &storage::Journal) -> Result<Option<StorageSecurity>, InvalidRecord> {
    let number = message.storage_security;
    match proto::StorageSecurity::try_from(number) {
        Ok(proto::StorageSecurity::Invalid) => Ok(None),
        Ok(proto::StorageSecurity::Insecure) => Ok(Some(StorageSecurity::Insecure)),
        Ok(proto::StorageSecurity::Encrypted) => Ok(Some(StorageSecurity::Encrypted)),
        Ok(proto::StorageSecurity::AuthenticatedEncrypted) => Ok(Some(StorageSecurity::AuthenticatedEncrypted)),
        Err(_) => Err(InvalidRecord::field("storage_security", format!("number {number} is unknown"))),
    }
}

fn cluster_unlock_key(message: &proto::ClusterUnlockKey) -> Result<ClusterUnlockKey, InvalidRecord> {
    Ok(ClusterUnlockKey {
        current: secret("cluster_unlock_key.current", &message.current)?,
        pending: message.pending.as_deref().map(|key| secret("cluster_unlock_key.pending", key)).transpose()?,
    })
}

fn epoch(message: proto::Epoch) -> Epoch {
    Epoch { incarnation: message.incarnation, epoch: message.epoch }
}

fn epoch_message(epoch: Epoch) -> proto::Epoch {
    proto::Epoch { incarnation: epoch.incarnation, epoch: epoch.epoch }
}

fn epoch_floor(message: &proto::EpochFloor) -> Result<EpochFloor, InvalidRecord> {
    let absent = || InvalidRecord::field("epoch_floors.epoch", "it is absent");
    InvalidRecord::not_empty("epoch_floors.owner_node_id", message.owner_node_id.as_bytes())?;
    Ok(EpochFloor { owner_node_id: message.owner_node_id.clone(), epoch: epoch(message.epoch.ok_or_else(absent)?) })
}
