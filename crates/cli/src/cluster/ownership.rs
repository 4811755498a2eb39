//! `polis cluster takeownership`.

use std::process::ExitCode;

use polis_identity::ClusterId;

use crate::arguments::ConnectionArguments;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::operator::{Operator, Repeat, escrow};
use crate::shell;
use crate::view::print;

pub(super) fn run(arguments: &ConnectionArguments) -> Result<ExitCode, Failure> {
    let taken = get_certificate(arguments)?;
    let path = shell::quote(&taken.configuration.certificate_path());
    print(&format!(
        "{} the owner of cluster {}\ncertificate {} {path}\nlook at it: polis node list{}\n",
        if taken.is_new { "you are now" } else { "you are" },
        taken.cluster_id,
        if taken.is_new { "kept at" } else { "was there already:" },
        taken.options
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Makes whoever runs this the owner, silently. Gives the cluster's id.
///
/// # Errors
///
/// When there is no key, the cluster does not answer, or the key is not the owner's.
pub(crate) fn take(arguments: &ConnectionArguments) -> Result<ClusterId, Failure> {
    Ok(get_certificate(arguments)?.cluster_id)
}

struct Taken {
    cluster_id: ClusterId,
    configuration: Configuration,
    /// Whether the certificate was not there before.
    is_new: bool,
    options: String,
}

/// Gets the owner's certificate and keeps it.
fn get_certificate(arguments: &ConnectionArguments) -> Result<Taken, Failure> {
    Operator::run_with_key(arguments, "cluster takeownership", async |operator, key| {
        let public = key.public();
        let what = "the cluster gave no owner certificate";
        let answer = operator
            .call(what, Repeat::Always, async |channel| escrow(channel, public, operator.authority()).await)
            .await?;
        let certificate = answer.map_err(|cause| Failure::failed(what).because_of(cause))?;
        let configuration = operator.configuration();
        // One that cannot be read is replaced like one that is not there.
        let is_new = configuration.certificate().ok().flatten().is_none_or(|known| known != certificate);
        if is_new {
            configuration.keep_certificate(&certificate)?;
        }
        Ok(Taken {
            cluster_id: operator.authority().cluster_id(),
            configuration: configuration.clone(),
            is_new,
            options: operator.options().to_owned(),
        })
    })
}
