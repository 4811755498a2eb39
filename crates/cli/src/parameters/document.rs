//! What is in a parameters file, as it is shown. Secrets are left out here, so no form of output can show them.

use polis_parameters::{
    Bootstrap, ClusterParameters, LabelFault, Labels, Parameters, Register, StoragePolicy, TpmMode,
};
use polis_proto::api::{NodeParameters, node_parameters::Cluster};
use serde::Serialize;

use crate::view::{Fields, Paint};

/// A parameters file. Keys are part of the command contract: add, do not change.
#[derive(Debug, Serialize)]
pub(super) struct Document {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bootstrap: Option<BootstrapDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    register: Option<RegisterDocument>,
    labels: Vec<LabelDocument>,
    bad_labels: Vec<BadLabelDocument>,
    static_network: bool,
    /// What a node of this build does with it.
    effect: String,
    /// Whether a node of this build takes it: it does, if its host has what is needed.
    accepted: bool,
}

#[derive(Debug, Serialize)]
struct BootstrapDocument {
    owner_public_key: String,
    storage_security: &'static str,
    tpm_mode: &'static str,
    cluster_domain: String,
    /// Fingerprint of the recovery key that is beside the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    recovery_key: Option<String>,
    /// The file has no configuration, and what stands here are the defaults.
    default_configuration: bool,
}

#[derive(Debug, Serialize)]
struct RegisterDocument {
    addresses: Vec<String>,
    ca_public_key: String,
    /// Length of the ticket, in bytes; the ticket itself is a secret.
    ticket_length: usize,
}

#[derive(Debug, Serialize)]
struct LabelDocument {
    key: String,
    value: String,
}

#[derive(Debug, Serialize)]
struct BadLabelDocument {
    label: String,
    reason: String,
}

impl Document {
    /// `message` and `parameters` are two readings of the same bytes: the first knows what was left open, the second what
    /// it means.
    pub(super) fn new(message: &NodeParameters, parameters: &Parameters) -> Self {
        let (labels, faults) = match &parameters.cluster {
            ClusterParameters::Bootstrap(bootstrap) => (&bootstrap.labels, &bootstrap.label_faults),
            ClusterParameters::Register(register) => (&register.labels, &register.label_faults),
        };
        let (kind, bootstrap, register) = match &parameters.cluster {
            ClusterParameters::Bootstrap(bootstrap) => {
                ("bootstrap", Some(BootstrapDocument::new(message, bootstrap)), None)
            }
            ClusterParameters::Register(register) => ("register", None, Some(RegisterDocument::new(message, register))),
        };
        let mut effect = accepted_effect(kind, faults, parameters.has_network_configuration);
        if let ClusterParameters::Bootstrap(bootstrap) = &parameters.cluster {
            needs(bootstrap).for_each(|need| effect.push_str(&format!("; {need}")));
        }
        Self {
            kind,
            bootstrap,
            register,
            labels: label_documents(labels),
            bad_labels: faults.iter().map(BadLabelDocument::new).collect(),
            static_network: parameters.has_network_configuration,
            effect,
            accepted: true,
        }
    }

    pub(super) fn render(&self, paint: Paint) -> String {
        let mut fields = Fields::default();
        if let Some(bootstrap) = &self.bootstrap {
            fields.add("Kind", "bootstrap: the node creates a cluster");
            fields.add("Owner", bootstrap.owner_public_key.clone());
            let default =
                if bootstrap.default_configuration { " (default; the file has no configuration)" } else { "" };
            fields.add("Storage", format!("{}{default}", bootstrap.storage_security));
            fields.add("TPM", format!("{}{default}", bootstrap.tpm_mode));
            fields.add("Domain", bootstrap.cluster_domain.clone());
            let none = "none; give one with --recovery-key, or set it later: polis cluster recovery-key set";
            fields.add("Recovery key", bootstrap.recovery_key.clone().unwrap_or_else(|| none.to_owned()));
        }
        if let Some(register) = &self.register {
            fields.add("Kind", "register: the node asks a cluster for admission");
            fields.add("Addresses", register.addresses.join("\n"));
            fields.add("Cluster CA", register.ca_public_key.clone());
            fields.add("Ticket", format!("{} bytes (secret, not shown)", register.ticket_length));
        }
        let labels: Vec<String> = self.labels.iter().map(|label| format!("{}={}", label.key, label.value)).collect();
        fields.add("Labels", if labels.is_empty() { "none".to_owned() } else { labels.join("\n") });
        if !self.bad_labels.is_empty() {
            let bad =
                self.bad_labels.iter().map(|bad| format!("{} {}: {}", paint.yellow("bad"), bad.label, bad.reason));
            fields.add("Bad labels", bad.collect::<Vec<_>>().join("\n"));
        }
        fields.add("Network", if self.static_network { "static configuration" } else { "automatic" });
        fields.add("This build", self.effect.clone());
        fields.render(paint)
    }
}

impl BootstrapDocument {
    fn new(message: &NodeParameters, bootstrap: &Bootstrap) -> Self {
        let default_configuration = match &message.cluster {
            Some(Cluster::ClusterBootstrap(bootstrap)) => bootstrap.initial_cluster_configuration.is_none(),
            Some(Cluster::ClusterRegister(_)) | None => false,
        };
        Self {
            owner_public_key: bootstrap.owner.to_string(),
            storage_security: storage_name(bootstrap.storage_policy),
            tpm_mode: tpm_name(bootstrap.tpm_mode),
            cluster_domain: bootstrap.domain.to_string(),
            recovery_key: bootstrap.recovery_key.as_ref().map(|key| key.fingerprint().to_string()),
            default_configuration,
        }
    }
}

impl RegisterDocument {
    fn new(message: &NodeParameters, register: &Register) -> Self {
        let ticket_length = match &message.cluster {
            Some(Cluster::ClusterRegister(register)) => register.register_ticket.len(),
            Some(Cluster::ClusterBootstrap(_)) | None => 0,
        };
        Self {
            addresses: register.addresses.iter().map(ToString::to_string).collect(),
            ca_public_key: register.certificate_authority.public_key().to_string(),
            ticket_length,
        }
    }
}

impl BadLabelDocument {
    fn new(fault: &LabelFault) -> Self {
        Self { label: fault.label.clone(), reason: fault.error.to_string() }
    }
}

fn label_documents(labels: &Labels) -> Vec<LabelDocument> {
    labels.iter().map(|label| LabelDocument { key: label.key().into(), value: label.value().into() }).collect()
}

/// The names of `--storage-security`.
const fn storage_name(policy: StoragePolicy) -> &'static str {
    match policy {
        StoragePolicy::Permissive => "permissive",
        StoragePolicy::NeedsEncryption => "encrypted",
        StoragePolicy::NeedsEncryptionAndAuthentication => "authenticated",
        StoragePolicy::NeedsInsecure => "insecure",
    }
}

/// The names of `--tpm-mode`.
const fn tpm_name(mode: TpmMode) -> &'static str {
    match mode {
        TpmMode::Required => "required",
        TpmMode::BestEffort => "best-effort",
        TpmMode::Disabled => "disabled",
    }
}

/// What a node must find on its host to follow these parameters.
fn needs(bootstrap: &Bootstrap) -> impl Iterator<Item = &'static str> {
    let storage = match bootstrap.storage_policy {
        StoragePolicy::Permissive | StoragePolicy::NeedsEncryptionAndAuthentication => {
            Some("needs a host that can encrypt and authenticate its data")
        }
        StoragePolicy::NeedsEncryption => Some("needs a host that can encrypt its data"),
        StoragePolicy::NeedsInsecure => None,
    };
    let tpm = match bootstrap.tpm_mode {
        TpmMode::Required => Some("needs a TPM"),
        TpmMode::BestEffort | TpmMode::Disabled => None,
    };
    storage.into_iter().chain(tpm)
}

fn accepted_effect(kind: &str, faults: &[LabelFault], static_network: bool) -> String {
    let effect = if kind == "register" { "asks the cluster for admission" } else { "creates a cluster" };
    let mut effect = effect.to_owned();
    match faults.len() {
        0 => {}
        1 => effect.push_str("; leaves the bad label out"),
        number => effect.push_str(&format!("; leaves the {number} bad labels out")),
    }
    if static_network {
        effect.push_str("; leaves the network to the operating system");
    }
    effect
}
