//! How an owner key gets its certificate (AAA.Escrow; metropolis.md G.4 and H.2).

use futures::{StreamExt as _, stream};
use polis_identity::{AuthorityCertificate, Certificate, PublicKey, verify_user_in_cluster};
use polis_proto::api::aaa_client::AaaClient;
use polis_proto::api::{EscrowRequest, escrow_request};
use tonic::Status;
use tonic::transport::Channel;

/// The only identity that there is (metropolis.md G.4).
pub(crate) const OWNER: &str = "owner";

/// The certificate that the leader at the other end of `channel` gives for `key`, which the channel shows.
///
/// # Errors
///
/// The refusal; `Ok(Err(..))` when what was given is not the certificate of this key.
pub(crate) async fn escrow(
    channel: Channel,
    key: PublicKey,
    authority: &AuthorityCertificate,
) -> Result<Result<Certificate, String>, Status> {
    let parameters =
        escrow_request::Parameters { requested_identity_name: OWNER.to_owned(), public_key: key.as_bytes().to_vec() };
    let request = EscrowRequest { parameters: Some(parameters), proofs: None };
    // The end of the requests would tell the server that nothing more is to be had from us.
    let requests = stream::iter([request]).chain(stream::pending());
    let mut answers = AaaClient::new(channel).escrow(requests).await?.into_inner();
    while let Some(answer) = answers.message().await? {
        if !answer.emitted_certificate.is_empty() {
            return Ok(check(answer.emitted_certificate, key, authority));
        }
    }
    Ok(Err("the cluster ended the conversation without giving a certificate".into()))
}

fn check(der: Vec<u8>, key: PublicKey, authority: &AuthorityCertificate) -> Result<Certificate, String> {
    let certificate = Certificate::from_der(der).map_err(|error| format!("it is no certificate: {error}"))?;
    let user = verify_user_in_cluster(&certificate, authority).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        format!("it is not that of a user of the cluster: {error}{cause}")
    })?;
    if user.public_key != key {
        return Err(format!("it is for the key {}", user.public_key));
    }
    Ok(certificate)
}
