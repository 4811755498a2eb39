//! The steps that making a cluster and entering one have in common. Each can be repeated after any crash.

use polis_condition::Severity;
use polis_curator::Cluster;
use polis_identity::{JoinKey, NodeId, NodeKey, ShareKey};
use polis_parameters::LabelFault;
use polis_proto::api::NodeParameters;
use polis_proto::api::node_parameters::Cluster as ClusterParameters;
use polis_storage::data::UnlockKeys;
use polis_storage::journal::{Intent, Phase, StorageSecurity};
use polis_storage::{Journal, LocalRoles, NodeCredentials};
use polis_supervisor::Context;
use prost::Message as _;
use zeroize::Zeroize as _;

use crate::bring_up::internal;
use crate::consensus::ConsensusProvider;
use crate::failure::Failure;
use crate::manager::Inner;
use crate::trouble::{Ended, Trouble, until_cured};
use crate::unlock::{KeysAtStart, keys_at_start};

impl<C: ConsensusProvider> Inner<C> {
    /// Writes down what the node is about to become. From here on it is always this node.
    pub(crate) async fn record_intent(&self, context: &Context, journal: Journal) -> Result<Journal, Ended> {
        self.store_journal(context, &journal, "journal/intent").await?;
        let node = NodeId::of(&node_key(&journal)?.public());
        tracing::info!(%node, "this node's identity is durable");
        Ok(journal)
    }

    /// Formats the data partition if the journal allows it, and opens it. A new one is given these roles.
    pub(crate) async fn prepare_data(
        &self,
        context: &Context,
        journal: Journal,
        first_roles: LocalRoles,
    ) -> Result<Journal, Ended> {
        let owner = NodeId::of(&node_key(&journal)?.public()).to_string();
        match journal.phase() {
            Phase::Formattable => {
                let security = journal.storage_security.unwrap_or(StorageSecurity::Insecure);
                let partition = self.choose_data(context, security).await?;
                let keys = first_keys(&journal)?;
                until_cured(context, || async {
                    let permit = journal.permit_format().map_err(|error| Trouble::Final(internal(error)))?;
                    Ok(partition.format(permit, &owner, keys.as_ref(), &self.data_progress).await?)
                })
                .await?;
                self.open_data(context, &journal).await?;
                let file = self.layout.data.node.roles.clone();
                if self.on_disk(context, move || file.load()).await?.is_none() {
                    self.store_roles(context, first_roles, "roles/first").await?;
                }
                let journal = journal.advance(Phase::Formatted).map_err(internal)?;
                self.store_journal(context, &journal, "journal/formatted").await?;
                Ok(journal)
            }
            Phase::Formatted | Phase::Enrolled | Phase::Removed { .. } => {
                self.open_data(context, &journal).await?;
                Ok(journal)
            }
        }
    }

    /// Stores the node's identity in its cluster, unless it is stored already.
    pub(crate) async fn store_credentials(
        &self,
        context: &Context,
        node_key: &NodeKey,
        cluster: &Cluster,
    ) -> Result<(), Ended> {
        let wanted = NodeCredentials {
            node_key: node_key.secret().clone(),
            node_certificate: cluster.node_certificate.der().to_vec(),
            ca_certificate: cluster.authority.der().to_vec(),
        };
        let file = self.layout.data.node.credentials.clone();
        let load = file.clone();
        let found = self.on_disk(context, move || load.load()).await?;
        if found.is_none_or(|found| found != wanted) {
            self.on_disk(context, move || file.store(&wanted, "node/credentials")).await?;
        }
        Ok(())
    }
}

/// The keys that a data partition is formatted with. They are durable before that.
pub(crate) fn first_keys(journal: &Journal) -> Result<Option<UnlockKeys>, Failure> {
    match keys_at_start(journal)? {
        KeysAtStart::NotNeeded => Ok(None),
        KeysAtStart::Own { node, cluster } if !cluster.is_empty() => {
            Ok(cluster.into_iter().next().map(|cluster| UnlockKeys { node, cluster }))
        }
        KeysAtStart::Own { .. } | KeysAtStart::FromOthers { .. } => Err(Failure::Disk {
            what: "the enrolment journal cannot be used",
            source: "the data partition is to be encrypted, and the journal does not hold the keys for that".into(),
        }),
    }
}

/// The journal of a new node, with keys of its own. How its data are protected is not decided yet.
pub(crate) fn intent(parameters: Vec<u8>) -> Journal {
    let node_key = NodeKey::generate();
    Journal::new(Intent {
        parameters,
        node_public_key: *node_key.public().as_bytes(),
        node_key: node_key.secret().clone(),
        join_key: JoinKey::generate().secret().clone(),
        share_key: ShareKey::generate().secret().clone(),
        storage_security: None,
    })
}

/// The journal of a node that is a member: the CA is known, the node key has its place in the credentials, and the register ticket
/// has done its work.
pub(crate) fn enrolled(journal: &Journal, cluster: &Cluster) -> Result<Journal, Failure> {
    let mut journal = journal.advance(Phase::Enrolled).map_err(internal)?;
    journal.node_key = None;
    journal.cluster_ca = Some(cluster.authority.der().to_vec());
    journal.cluster_id = Some(cluster.authority.cluster_id().to_string());
    journal.parameters = without_ticket(&journal.parameters);
    Ok(journal)
}

/// The same parameters without the register ticket. Parameters that cannot be read have none that anybody could use.
pub(crate) fn without_ticket(parameters: &[u8]) -> Vec<u8> {
    let Ok(mut message) = NodeParameters::decode(parameters) else { return parameters.to_vec() };
    match &mut message.cluster {
        Some(ClusterParameters::ClusterRegister(register)) => {
            register.register_ticket.zeroize();
            message.encode_to_vec()
        }
        // These are kept as they are, byte by byte.
        Some(ClusterParameters::ClusterBootstrap(_)) | None => parameters.to_vec(),
    }
}

/// The node key that the journal keeps until the credentials do.
pub(crate) fn node_key(journal: &Journal) -> Result<NodeKey, Failure> {
    let key = journal.node_key.clone().map(NodeKey::from_secret);
    key.filter(|key| *key.public().as_bytes() == journal.node_public_key).ok_or_else(|| Failure::Disk {
        what: "the enrolment journal cannot be used",
        source: "it does not hold the key of the node that it names".into(),
    })
}

/// Says which labels of the parameters the node does without.
pub(crate) fn report_labels(context: &Context, faults: &[LabelFault]) {
    if faults.is_empty() {
        return;
    }
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    context.conditions().raise(
        "labels-left-out",
        Severity::Warning,
        format!("labels in the parameters were left out: {}", faults.join("; ")),
        "the node enrols without them; give it the right ones later with `polis node set label`",
    );
}

#[cfg(test)]
mod tests {
    use polis_proto::api::node_parameters::{ClusterBootstrap, ClusterRegister};

    use super::*;

    #[test]
    fn the_ticket_is_taken_out_and_nothing_else() {
        let register = ClusterRegister {
            cluster_directory: None,
            register_ticket: b"ticket".to_vec(),
            ca_certificate: b"certificate".to_vec(),
            labels: None,
        };
        let parameters =
            NodeParameters { cluster: Some(ClusterParameters::ClusterRegister(register)), network_config: None };
        let rest = without_ticket(&parameters.encode_to_vec());
        assert!(!rest.windows(6).any(|bytes| bytes == b"ticket"));
        match NodeParameters::decode(&*rest).unwrap().cluster {
            Some(ClusterParameters::ClusterRegister(register)) => {
                assert_eq!(register.ca_certificate, b"certificate");
                assert!(register.register_ticket.is_empty());
            }
            _ => panic!("they say something else"),
        }

        let bootstrap =
            ClusterBootstrap { owner_public_key: vec![7; 32], initial_cluster_configuration: None, labels: None };
        let parameters =
            NodeParameters { cluster: Some(ClusterParameters::ClusterBootstrap(bootstrap)), network_config: None };
        let bytes = parameters.encode_to_vec();
        assert_eq!(without_ticket(&bytes), bytes);
        assert_eq!(without_ticket(b"\xff"), b"\xff");
    }
}
