//! Which CA is believed: the one that was kept, else the first that is seen, if the owner's certificate or a person vouches
//! for it (metropolis.md J.7).

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use polis_identity::{AuthorityCertificate, Certificate, verify_certificate_authority, verify_in_cluster};
use polis_proto::curator_api::GetCaCertificateRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_rpc::{ClientIdentity, Connector, ExpectedServer};
use sha2::{Digest as _, Sha256};

use super::call_failure::{at, no_answer};
use crate::arguments::ConnectionArguments;
use crate::configuration::Configuration;
use crate::failure::Failure;
use crate::view::safe;

/// The CA of the cluster at the endpoints, kept for the next time.
///
/// # Errors
///
/// When nobody shows one, or nobody vouches for the one that is shown.
pub(super) async fn authority(
    configuration: &Configuration,
    arguments: &ConnectionArguments,
    command: &str,
) -> Result<AuthorityCertificate, Failure> {
    let damaged = |error: &dyn std::error::Error| {
        Failure::of(error).hint("bring the file back from a copy, or move it away: the CA is then asked for again")
    };
    if let Some(known) = configuration.authority().map_err(|error| damaged(&error))? {
        return Ok(known);
    }
    let (authority, shown_by) = first_encountered(&arguments.endpoints, arguments.timeout).await?;
    let certificate = configuration.certificate().map_err(|error| damaged(&error))?;
    let voucher = match &certificate {
        Some(certificate) => {
            verify_in_cluster(certificate, &authority).map_err(|error| {
                Failure::failed(format!(
                    "the cluster at {shown_by} is not the one that {} is of",
                    configuration.certificate_path().display()
                ))
                .because(&error)
                .because_of(format!("it shows the CA {}", fingerprint(&authority)))
                .hint("check the addresses after --endpoints, or name the directory of that cluster with --config DIR")
            })?;
            "it signed the owner certificate that is there"
        }
        None if arguments.insecure_accept_and_persist_first_encountered_ca => {
            "accepted without a question, as was asked for"
        }
        None => {
            let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
            if !is_terminal {
                return Err(refusal(&authority, shown_by, command));
            }
            if !ask(&authority, shown_by)? {
                return Err(Failure::failed("the CA was not accepted; nothing was changed"));
            }
            "accepted"
        }
    };
    configuration.keep_authority(&authority)?;
    eprintln(&format!(
        "CA of cluster {} kept at {} ({voucher})",
        authority.cluster_id(),
        configuration.authority_path().display()
    ));
    Ok(authority)
}

/// SHA-256 of the certificate, in hex: what other tools show too.
pub(crate) fn fingerprint(authority: &AuthorityCertificate) -> String {
    hex::encode(Sha256::digest(authority.der()))
}

/// Asks all endpoints at once for the CA of their cluster.
async fn first_encountered(
    endpoints: &[SocketAddr],
    timeout: Duration,
) -> Result<(AuthorityCertificate, SocketAddr), Failure> {
    let answers = join_all(endpoints.iter().map(|address| async {
        let answer = tokio::time::timeout(timeout, shown_at(*address)).await;
        (*address, answer.unwrap_or_else(|_| Err(format!("no answer within {}", crate::duration::show(timeout)))))
    }))
    .await;
    let (mut shown, mut causes) = (BTreeMap::new(), Vec::new());
    for (address, answer) in answers {
        match answer {
            Ok(authority) => {
                shown.entry(fingerprint(&authority)).or_insert((authority, address));
            }
            Err(cause) => causes.push(at(address, &cause)),
        }
    }
    if shown.len() > 1 {
        let failure = Failure::usage("the endpoints are of different clusters; none was believed");
        let failure = shown.iter().fold(failure, |failure, (fingerprint, (authority, address))| {
            failure.because_of(format!("{address} is of cluster {} (CA {fingerprint})", authority.cluster_id()))
        });
        return Err(failure.hint("name nodes of one cluster with --endpoints"));
    }
    shown.into_values().next().ok_or_else(|| {
        no_answer("the CA of the cluster could not be asked for", causes).hint(
            "check that a node runs there (polis node status --root DIR on it) and that its port 7835 can be reached",
        )
    })
}

async fn shown_at(address: SocketAddr) -> Result<AuthorityCertificate, String> {
    let connector = Connector::new(&ClientIdentity::anonymous(), ExpectedServer::Anybody);
    let mut client = CuratorLocalClient::new(connector.channel(address));
    let answer =
        client.get_ca_certificate(GetCaCertificateRequest {}).await.map_err(|status| polis_rpc::describe(&status))?;
    let certificate = Certificate::from_der(answer.into_inner().identity_ca_certificate)
        .map_err(|error| format!("it shows a CA that is no certificate: {error}"))?;
    verify_certificate_authority(certificate).map_err(|error| format!("it shows a CA that is none: {error}"))
}

fn refusal(authority: &AuthorityCertificate, shown_by: SocketAddr, command: &str) -> Failure {
    Failure::usage(format!("the cluster at {shown_by} is not known yet, and nobody is there to be asked"))
        .because_of(format!("it shows the CA {}", fingerprint(authority)))
        .because_of(format!("which is that of cluster {}", authority.cluster_id()))
        .hint(format!(
            "compare the cluster with what a node of it says (polis node status --root DIR); if it is the right one:\n\
             polis {command} --insecure-accept-and-persist-first-encountered-ca"
        ))
}

fn ask(authority: &AuthorityCertificate, shown_by: SocketAddr) -> Result<bool, Failure> {
    let question = format!(
        "The cluster at {shown_by} is not known yet. It shows this CA:\n  \
         cluster  {}\n  \
         SHA-256  {}\n\
         Compare the cluster with what a node of it says: polis node status --root DIR\n",
        authority.cluster_id(),
        fingerprint(authority)
    );
    let answer = ask_yes_or_no(&question, &mut io::stdin().lock(), &mut io::stderr());
    answer.map_err(|error| Failure::failed("there was no answer").because(&error))
}

/// Asks until there is an answer; the end of the input is a no.
fn ask_yes_or_no(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<bool> {
    output.write_all(safe(question).as_bytes())?;
    loop {
        output.write_all(b"Is it the right one? (yes/no) ")?;
        output.flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            return Ok(false);
        }
        match line.trim().to_ascii_lowercase().as_str() {
            "yes" | "y" => return Ok(true),
            "no" | "n" => return Ok(false),
            _ => output.write_all(b"write yes or no\n")?,
        }
    }
}

fn eprintln(text: &str) {
    // A message that nobody sees is not worth an error.
    let _ = writeln!(io::stderr(), "{}", safe(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for (input, expect, questions) in [
            ("yes\n", true, 1),
            ("Y\n", true, 1),
            ("no\n", false, 1),
            ("", false, 1),
            ("\nmaybe\nyes\n", true, 3),
            ("sure\nn\n", false, 2),
            ("sure", false, 2),
        ] {
            let mut output = Vec::new();
            assert_eq!(ask_yes_or_no("Which?\n", &mut input.as_bytes(), &mut output).unwrap(), expect, "{input:?}");
            let output = String::from_utf8(output).unwrap();
            assert!(output.starts_with("Which?\n"));
            assert_eq!(output.matches("(yes/no)").count(), questions, "{input:?}");
        }
    }
}
