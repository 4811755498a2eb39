//! `polis owner rotate`.
//!
//! The order makes it safe to be interrupted anywhere: the new key is durable before the cluster hears of it, and the present
//! one stays until the cluster is known to have taken the new one. A second run sees the new key lying there and asks the
//! cluster whether it is the owner's already.

use std::io;
use std::process::ExitCode;

use polis_identity::{Certificate, OwnerKey, verify_user_in_cluster};
use polis_proto::cluster::RotateOwnerRequest;
use polis_proto::cluster::cluster_client::ClusterClient as ClusterServiceClient;
use tonic::Code;

use super::{create_key, failure, read_owner_key};
use crate::arguments::ConnectionArguments;
use crate::atomic_file::{self, Existing};
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::operator::{Operator, Repeat, escrow};
use crate::view::{Progress, print};

/// What the new key signs, before the cluster's id (polis/cluster/v1/cluster.proto).
const PROOF_LABEL: &[u8] = b"polis owner rotation v1\0";

/// Mode of the key file (metropolis.md J.7).
const MODE: u32 = 0o600;

const WHAT: &str = "the owner key was not changed";

pub(super) fn run(arguments: &ConnectionArguments) -> Result<ExitCode, Failure> {
    let configuration = Configuration::resolve(&arguments.configuration)?;
    let progress = Progress::start();
    let next_path = configuration.next_key_path();
    if next_path.exists() {
        progress.line("a rotation was interrupted; asking the cluster whether it has taken the new key");
        if let Some(text) = complete(arguments, &configuration)? {
            print(&text)?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let text = Operator::run(arguments, "owner rotate", async |operator| {
        let created = create_key(&next_path).map_err(|error| failure(&error, &next_path))?;
        progress.line(&format!("new key {} ({})", created.key, next_path.display()));
        let next = read_owner_key(&next_path).map_err(|error| failure(&error, &next_path))?;
        let request = RotateOwnerRequest {
            public_key: next.public().as_bytes().to_vec(),
            proof: proof(&next, operator).to_vec(),
        };
        let answer = operator
            .call(WHAT, Repeat::OnlyIfNothingWasDone, async |channel| {
                ClusterServiceClient::new(channel).rotate_owner(request.clone()).await
            })
            .await;
        let der = match answer {
            Ok(answer) => answer.into_inner().certificate,
            Err(error) => {
                let lost = error.is_outcome_unknown();
                let failure = Failure::from(error);
                return Err(if lost {
                    failure.hint(format!(
                        "whether the cluster has taken the new key shows when the command is run again: polis owner rotate{}",
                        operator.options()
                    ))
                } else {
                    failure
                });
            }
        };
        let certificate = Certificate::from_der(der).map_err(|error| {
            Failure::failed("the cluster has taken the new key, but gave something that is no certificate")
                .because(&error)
                .hint(format!("run the command again: polis owner rotate{}", operator.options()))
        })?;
        finish(&configuration, operator, &next, &certificate)
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the cluster whether the new key that lies there is the owner's; if so, puts it in its place.
fn complete(arguments: &ConnectionArguments, configuration: &Configuration) -> Result<Option<String>, Failure> {
    let path = configuration.next_key_path();
    let next = read_owner_key(&path).map_err(|error| failure(&error, &path))?;
    let public = next.public();
    // Whoever asks must have some key; which one does not matter for this question, as it is asked with the new one.
    Operator::run_with_key(arguments, "owner rotate", async |operator, _| {
        operator
            .with_key(&next, async |operator| {
                let answer = operator
                    .call(WHAT, Repeat::Always, async |channel| escrow(channel, public, operator.authority()).await)
                    .await;
                match answer {
                    Ok(Ok(certificate)) => finish(configuration, operator, &next, &certificate).map(Some),
                    Ok(Err(cause)) => Err(Failure::failed(WHAT).because_of(cause)),
                    Err(error) if error.code() == Some(Code::PermissionDenied) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            })
            .await
    })
}

fn proof(next: &OwnerKey, operator: &Operator) -> [u8; 64] {
    let cluster = operator.authority().cluster_id().to_string();
    next.sign(&[PROOF_LABEL, cluster.as_bytes()].concat())
}

/// Puts the new key in the place of the old one. The key first: with the new key the certificate can be had again, with the
/// new certificate alone nothing can be done.
fn finish(
    configuration: &Configuration,
    operator: &Operator,
    next: &OwnerKey,
    certificate: &Certificate,
) -> Result<String, Failure> {
    let what = "the cluster has taken the new key, but the files are not in their places";
    let again = format!("run the command again: polis owner rotate{}", operator.options());
    let user = verify_user_in_cluster(certificate, operator.authority())
        .map_err(|error| Failure::failed(what).because(&error).hint(again.clone()))?;
    if user.public_key != next.public() {
        return Err(Failure::failed(what).because_of("the certificate is for another key").hint(again));
    }
    let refused = |error: &io::Error| Failure::failed(what).because(error).hint(again.clone());
    let pem = next.to_owner_pem();
    atomic_file::write(&configuration.key_path(), pem.as_bytes(), MODE, Existing::Replace)
        .map_err(|error| refused(&error))?;
    configuration.keep_certificate(certificate)?;
    std::fs::remove_file(configuration.next_key_path()).map_err(|error| refused(&error))?;
    Ok(format!(
        "the owner of cluster {} has the key {} now\nkey and certificate are in {} and {}; the old key has no power any more\n",
        operator.authority().cluster_id(),
        next.public(),
        configuration.key_path().display(),
        configuration.certificate_path().display()
    ))
}
