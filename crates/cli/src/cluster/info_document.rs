//! What a cluster is, in the form that is shown: `polis cluster info` and `polis cluster configure get`.

use polis_identity::AuthorityCertificate;
use polis_proto::common::cluster_configuration::{
    Kubernetes, StorageSecurityPolicy, TpmMode, kubernetes::NodeLabelsToSynchronize,
};
use polis_proto::common::{ClusterConfiguration, ClusterDirectory};
use serde::Serialize;
use serde_json::{Value, json};

use crate::operator::fingerprint;
use crate::view::{Fields, Paint};
use crate::wire;

/// The only value that can be changed (metropolis.md G.9).
pub(super) const NODE_LABELS: &str = "kubernetes.node_labels_to_synchronize";

/// What the cluster is. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct InfoDocument {
    pub(super) cluster_id: String,
    /// SHA-256 of the CA's certificate.
    pub(super) ca_fingerprint: String,
    pub(super) configuration: ConfigurationDocument,
    pub(super) directory: Vec<DirectoryDocument>,
}

/// The configuration of the cluster. Keys are part of the command contract: add, do not change.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ConfigurationDocument {
    pub(super) cluster_domain: String,
    pub(super) tpm_mode: String,
    pub(super) storage_security_policy: String,
    pub(super) kubernetes: KubernetesDocument,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct KubernetesDocument {
    /// Regular expressions.
    pub(super) node_labels_to_synchronize: Vec<String>,
}

/// A node at which the cluster may be asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct DirectoryDocument {
    pub(super) node_id: String,
    pub(super) addresses: Vec<String>,
}

impl From<ClusterConfiguration> for ConfigurationDocument {
    fn from(configuration: ClusterConfiguration) -> Self {
        let labels = configuration.kubernetes.unwrap_or_default().node_labels_to_synchronize;
        Self {
            cluster_domain: configuration.cluster_domain,
            tpm_mode: wire::name::<TpmMode>(configuration.tpm_mode, TpmMode::as_str_name, "TPM_MODE_"),
            storage_security_policy: wire::name::<StorageSecurityPolicy>(
                configuration.storage_security_policy,
                StorageSecurityPolicy::as_str_name,
                "STORAGE_SECURITY_POLICY_",
            ),
            kubernetes: KubernetesDocument {
                node_labels_to_synchronize: labels.into_iter().map(|label| label.regexp).collect(),
            },
        }
    }
}

impl ConfigurationDocument {
    /// All keys with their values.
    pub(super) fn values(&self) -> [(&'static str, Value); 4] {
        [
            ("cluster_domain", json!(self.cluster_domain)),
            ("tpm_mode", json!(self.tpm_mode)),
            ("storage_security_policy", json!(self.storage_security_policy)),
            (NODE_LABELS, json!(self.kubernetes.node_labels_to_synchronize)),
        ]
    }

    /// One `KEY VALUE` a line; the values of a list are separated by spaces.
    pub(super) fn render(&self, paint: Paint) -> String {
        let mut fields = Fields::default();
        for (key, value) in self.values() {
            fields.add(key, plain(&value));
        }
        fields.render(paint)
    }
}

/// A value as it is shown to people.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(list) if list.is_empty() => "none".to_owned(),
        Value::Array(list) => list.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// The wire form of label expressions.
pub(super) fn kubernetes(expressions: &[String]) -> Kubernetes {
    let labels = expressions.iter().map(|regexp| NodeLabelsToSynchronize { regexp: regexp.clone() });
    Kubernetes { node_labels_to_synchronize: labels.collect() }
}

impl InfoDocument {
    pub(super) fn new(
        authority: &AuthorityCertificate,
        configuration: ClusterConfiguration,
        directory: ClusterDirectory,
    ) -> Self {
        let nodes = directory.nodes.into_iter().map(|node| DirectoryDocument {
            node_id: node.id,
            addresses: node.addresses.into_iter().map(|address| address.host).collect(),
        });
        Self {
            cluster_id: authority.cluster_id().to_string(),
            ca_fingerprint: fingerprint(authority),
            configuration: configuration.into(),
            directory: nodes.collect(),
        }
    }

    pub(super) fn render(&self, paint: Paint) -> String {
        let mut fields = Fields::default();
        fields.add("Cluster", self.cluster_id.clone());
        fields.add("Domain", self.configuration.cluster_domain.clone());
        fields.add("CA (SHA-256)", self.ca_fingerprint.clone());
        fields.add("TPM", self.configuration.tpm_mode.clone());
        fields.add("Storage", self.configuration.storage_security_policy.clone());
        fields.add("Labels for Kubernetes", plain(&json!(self.configuration.kubernetes.node_labels_to_synchronize)));
        let nodes = self.directory.iter().map(|node| match &node.addresses[..] {
            [] => format!("{} (no address known)", node.node_id),
            addresses => format!("{} {}", node.node_id, addresses.join(",")),
        });
        let nodes: Vec<String> = nodes.collect();
        fields.add("Directory", if nodes.is_empty() { "empty".to_owned() } else { nodes.join("\n") });
        fields.render(paint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cluster_is() {
        let info = InfoDocument {
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            ca_fingerprint: "ab".repeat(32),
            configuration: ClusterConfiguration {
                cluster_domain: "cluster.internal".into(),
                tpm_mode: TpmMode::BestEffort.into(),
                storage_security_policy: StorageSecurityPolicy::NeedsEncryptionAndAuthentication.into(),
                kubernetes: Some(kubernetes(&["^site$".into(), "^rack$".into()])),
            }
            .into(),
            directory: vec![
                DirectoryDocument { node_id: "metropolis-a".into(), addresses: vec!["127.1.0.1".into()] },
                DirectoryDocument { node_id: "metropolis-b".into(), addresses: vec![] },
            ],
        };
        assert_eq!(
            info.render(Paint::plain()),
            format!(
                "\
Cluster                0123456789abcdef0123456789abcdef
Domain                 cluster.internal
CA (SHA-256)           {}
TPM                    BEST_EFFORT
Storage                NEEDS_ENCRYPTION_AND_AUTHENTICATION
Labels for Kubernetes  ^site$ ^rack$
Directory              metropolis-a 127.1.0.1
                       metropolis-b (no address known)
",
                "ab".repeat(32)
            )
        );
        assert_eq!(
            info.configuration.render(Paint::plain()),
            "\
cluster_domain                         cluster.internal
tpm_mode                               BEST_EFFORT
storage_security_policy                NEEDS_ENCRYPTION_AND_AUTHENTICATION
kubernetes.node_labels_to_synchronize  ^site$ ^rack$
"
        );
    }
}
