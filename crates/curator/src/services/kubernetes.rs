//! Certificates for the parts of Kubernetes that a node runs (metropolis.md, G.4, IssueCertificate).
//!
//! They are issued by an authority of their own, for Ed25519 keys that the node has made. They are not stored: a node that starts
//! again asks with new keys.

use std::time::Duration;

use polis_identity::{Certificate, CertificateAuthority, NodeId, PublicKey, SerialNumber};
use rcgen::{
    CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod,
    KeyUsagePurpose, PublicKeyData, SanType, SignatureAlgorithm, SigningKey,
};
use sha2::{Digest as _, Sha256};

/// Name under which the authority is stored.
pub(super) const AUTHORITY: &str = "kubernetes-ca";

/// Common name of the authority.
pub(super) const AUTHORITY_NAME: &str = "Metropolis Kubernetes CA";

/// Group by which Kubernetes knows kubelets.
const KUBELETS: &str = "system:nodes";

/// The certificates of one worker.
pub(super) struct WorkerCertificates {
    /// With which the kubelet serves.
    pub(super) kubelet_server: Certificate,
    /// With which the kubelet calls.
    pub(super) kubelet_client: Certificate,
    /// With which the provisioner of volumes calls.
    pub(super) csi_provisioner: Certificate,
    /// With which the services of the node's network call.
    pub(super) netservices: Certificate,
}

/// Issues the certificates of the worker `node` for its keys.
pub(super) fn issue_worker(
    authority: &CertificateAuthority,
    node: &NodeId,
    kubelet: &PublicKey,
    csi_provisioner: &PublicKey,
    netservices: &PublicKey,
) -> WorkerCertificates {
    let client = |name: String, group: Option<&str>, key: &PublicKey| {
        let mut parameters = parameters(&name, group, key);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        issue(authority, &parameters, key)
    };
    let mut server = parameters(&node.to_string(), None, kubelet);
    let dns_name = node.to_string().try_into().expect("a node id is ASCII");
    server.subject_alt_names = vec![SanType::DnsName(dns_name)];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    WorkerCertificates {
        kubelet_server: issue(authority, &server, kubelet),
        kubelet_client: client(format!("system:node:{node}"), Some(KUBELETS), kubelet),
        csi_provisioner: client(format!("metropolis:csi-provisioner:{node}"), None, csi_provisioner),
        netservices: client(format!("metropolis:netservices:{node}"), None, netservices),
    }
}

fn parameters(name: &str, group: Option<&str>, key: &PublicKey) -> CertificateParams {
    let mut parameters = CertificateParams::default();
    // No clock is trusted here, as with every certificate of the cluster: from the beginning of 1970 to the end of 9999.
    parameters.not_before = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(9999, 12, 31) + Duration::from_secs(24 * 60 * 60 - 1);
    parameters.serial_number = Some((&SerialNumber::random()).into());
    parameters.distinguished_name = DistinguishedName::new();
    if let Some(group) = group {
        parameters.distinguished_name.push(DnType::OrganizationName, DnValue::Utf8String(group.to_owned()));
    }
    parameters.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(name.to_owned()));
    parameters.key_identifier_method = KeyIdMethod::PreSpecified(key_identifier(key));
    parameters.is_ca = IsCa::ExplicitNoCa;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.use_authority_key_identifier_extension = true;
    parameters
}

fn issue(authority: &CertificateAuthority, parameters: &CertificateParams, key: &PublicKey) -> Certificate {
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = DistinguishedName::new();
    issuer.distinguished_name.push(DnType::CommonName, DnValue::Utf8String(AUTHORITY_NAME.to_owned()));
    issuer.key_identifier_method = KeyIdMethod::PreSpecified(key_identifier(&authority.key().public()));
    let certificate =
        parameters.signed_by(&Subject(key), &Issuer::new(issuer, Signer(authority, authority.key().public())));
    let certificate = certificate.expect("checked parameters make a certificate");
    Certificate::from_der(certificate.der().to_vec()).expect("a certificate that was just written can be read")
}

/// By the first method of RFC 7093, as all authorities of Polis have it: the first 160 bits of SHA-256 over the key.
fn key_identifier(key: &PublicKey) -> Vec<u8> {
    Sha256::digest(key.as_bytes())[..20].to_vec()
}

/// The key for which a certificate is issued.
struct Subject<'a>(&'a PublicKey);

impl PublicKeyData for Subject<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

/// Signs with the authority's key, which never leaves its type, and its public half.
struct Signer<'a>(&'a CertificateAuthority, PublicKey);

impl PublicKeyData for Signer<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.1.as_bytes()
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ED25519
    }
}

impl SigningKey for Signer<'_> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(self.0.key().sign(message).to_vec())
    }
}

#[cfg(test)]
mod tests {
    use polis_identity::{NodeKey, verify_in_cluster};

    use super::*;

    #[test]
    fn each_certificate_is_for_its_key_and_name_and_signed_by_the_authority() {
        let authority = CertificateAuthority::generate(AUTHORITY_NAME);
        let node = NodeId::of(&NodeKey::generate().public());
        let [kubelet, csi, net] = [(); 3].map(|()| NodeKey::generate().public());
        let issued = issue_worker(&authority, &node, &kubelet, &csi, &net);
        for (certificate, key, name) in [
            (&issued.kubelet_server, kubelet, node.to_string()),
            (&issued.kubelet_client, kubelet, format!("system:node:{node}")),
            (&issued.csi_provisioner, csi, format!("metropolis:csi-provisioner:{node}")),
            (&issued.netservices, net, format!("metropolis:netservices:{node}")),
        ] {
            assert_eq!(verify_in_cluster(certificate, authority.certificate()), Ok(key), "{name}");
            assert_eq!(certificate.common_name(), Some(&*name));
        }
        assert_eq!(issued.kubelet_server.dns_names().collect::<Vec<_>>(), [node.to_string()]);
        let serials = [&issued.kubelet_server, &issued.kubelet_client].map(Certificate::serial_number);
        assert_ne!(serials[0], serials[1]);
        let group = KUBELETS.as_bytes();
        let has_group = |certificate: &Certificate| certificate.der().windows(group.len()).any(|part| part == group);
        assert!(has_group(&issued.kubelet_client) && !has_group(&issued.kubelet_server));
    }
}
