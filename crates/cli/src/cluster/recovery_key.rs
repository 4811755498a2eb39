//! `polis cluster recovery-key set`.

use std::path::Path;
use std::process::ExitCode;

use polis_proto::cluster::SetRecoveryKeyRequest;
use polis_proto::cluster::cluster_client::ClusterClient as ClusterServiceClient;

use crate::arguments::{ClusterRecoveryKeyCommand, ConnectionArguments};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::recovery_key::read_public;
use crate::view::print;

pub(super) fn run(command: &ClusterRecoveryKeyCommand) -> Result<ExitCode, Failure> {
    match command {
        ClusterRecoveryKeyCommand::Set { file, connection } => set(file, connection),
    }
}

fn set(file: &Path, connection: &ConnectionArguments) -> Result<ExitCode, Failure> {
    let key = read_public(file)?;
    let text = Operator::run(connection, "cluster recovery-key set", async |operator| {
        let request = SetRecoveryKeyRequest { public_key: key.as_bytes().to_vec() };
        let answer = operator
            .call("the recovery key was not set", Repeat::Always, async |channel| {
                ClusterServiceClient::new(channel).set_recovery_key(request.clone()).await
            })
            .await?;
        let before = if answer.into_inner().replaced {
            "it takes the place of another one, whose words open what was sealed before and nothing that is sealed from now on\n"
        } else {
            ""
        };
        Ok(format!(
            "cluster {} has the recovery key {}\n{before}\
             each member seals its keys to it, on its own disk and for the cluster; which have done so: polis cluster status{}\n",
            operator.authority().cluster_id(),
            key.fingerprint(),
            operator.options()
        ))
    })?;
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use crate::fake::{FakeCluster, run};

    #[test]
    fn the_public_half_reaches_the_leader_and_nothing_else_does() {
        let cluster = FakeCluster::start(2);
        cluster.own();
        let file = cluster.path("recovery.pem").display().to_string();
        run(&format!("polis recovery-key create -o {file} --words-to -")).succeeds();
        let shown = run(&format!("polis recovery-key show {file} -o json")).json();
        let set = || cluster.polis(&format!("polis cluster recovery-key set {file}"), &[1]);
        let outcome = set();
        let text = outcome.succeeds();
        assert!(text.contains(shown["fingerprint"].as_str().unwrap()) && !text.contains("takes the place"), "{text}");
        let sent = cluster.state().status.recovery_public_key.clone();
        assert_eq!(hex::encode(sent), shown["public_key"].as_str().unwrap());
        assert!(set().succeeds().contains("takes the place of another one"));

        std::fs::write(&file, "damaged").unwrap();
        set().fails(1, &["is not the public half"]);
        std::fs::remove_file(&file).unwrap();
        set().fails(2, &["could not be read"]);
        assert_eq!(cluster.state().changes.len(), 2);
        cluster.finish();
    }
}
