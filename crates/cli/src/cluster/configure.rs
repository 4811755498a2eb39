//! `polis cluster configure`.

use std::process::ExitCode;

use polis_proto::api::ConfigureClusterRequest;
use polis_proto::api::management_client::ManagementClient;
use polis_proto::common::ClusterConfiguration;
use prost_types::FieldMask;
use serde_json::{Map, Value};
use tonic::Code;

use super::info;
use super::info_document::{ConfigurationDocument, NODE_LABELS, kubernetes, plain};
use crate::arguments::{ConfigureCommand, OutputFormat, ShowClusterArguments};
use crate::failure::Failure;
use crate::operator::{Operator, Repeat};
use crate::view::{Paint, print_value};

pub(super) fn run(command: &ConfigureCommand) -> Result<ExitCode, Failure> {
    match command {
        ConfigureCommand::Get { key, show } => get(key.as_deref(), show),
        ConfigureCommand::Set { key, values, show } => set(key, values, show),
    }
}

fn get(key: Option<&str>, show: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    if let Some(key) = key {
        require_key(key)?;
    }
    let configuration =
        Operator::run(&show.connection, "cluster configure get", async |operator| current(operator).await)?;
    print_configuration(&configuration.into(), key, show.output)?;
    Ok(ExitCode::SUCCESS)
}

fn set(key: &str, values: &[String], show: &ShowClusterArguments) -> Result<ExitCode, Failure> {
    require_key(key)?;
    if key != NODE_LABELS {
        return Err(Failure::usage(format!("{key} cannot be changed"))
            .because_of("it was decided when the cluster was created, and nodes rely on it")
            .hint(format!("what can be changed is {NODE_LABELS}")));
    }
    let configuration =
        Operator::run(&show.connection, "cluster configure set", async |operator| configure(operator, values).await)?;
    print_configuration(&configuration.into(), Some(key), show.output)?;
    Ok(ExitCode::SUCCESS)
}

async fn current(operator: &Operator) -> Result<ClusterConfiguration, Failure> {
    Ok(info::get(operator).await?.cluster_configuration.unwrap_or_default())
}

/// Changes what was read to what is wanted. The cluster refuses when somebody else has changed it meanwhile; when that was
/// an earlier attempt of ours whose answer was lost, what is wanted is there already.
async fn configure(operator: &Operator, values: &[String]) -> Result<ClusterConfiguration, Failure> {
    let base = current(operator).await?;
    // Where nothing was ever set there is nothing to compare with, and the cluster takes no base without it (metropolis.md G.9).
    let base_config = base.kubernetes.is_some().then(|| base.clone());
    let wanted = ClusterConfiguration { kubernetes: Some(kubernetes(values)), ..base };
    let answer = operator
        .call("the configuration was not changed", Repeat::Always, async |channel| {
            let request = ConfigureClusterRequest {
                base_config: base_config.clone(),
                new_config: Some(wanted.clone()),
                update_mask: Some(FieldMask { paths: vec![NODE_LABELS.to_owned()] }),
            };
            let answer = ManagementClient::new(channel).configure_cluster(request).await?;
            Ok(answer.into_inner().resulting_config.unwrap_or_default())
        })
        .await;
    match answer {
        Ok(configuration) => Ok(configuration),
        Err(error) if error.code() == Some(Code::FailedPrecondition) => {
            let now = current(operator).await?;
            if ConfigurationDocument::from(now.clone()) == ConfigurationDocument::from(wanted) {
                return Ok(now);
            }
            Err(Failure::from(error)
                .hint("somebody else may have changed it at the same time; look, and run the command again"))
        }
        Err(error) => Err(error.into()),
    }
}

fn require_key(key: &str) -> Result<(), Failure> {
    let known = ConfigurationDocument::default().values().map(|(known, _)| known);
    if known.contains(&key) {
        return Ok(());
    }
    Err(Failure::usage(format!("there is no value {key:?}")).hint(format!("known are {}", known.join(", "))))
}

/// All values, or one: with its key for programs, alone for people.
fn print_configuration(
    configuration: &ConfigurationDocument,
    key: Option<&str>,
    output: OutputFormat,
) -> Result<(), Failure> {
    let Some(key) = key else {
        return print_value(output, configuration, |_| configuration.render(Paint::for_stdout()));
    };
    let found = configuration.values().into_iter().find(|(known, _)| *known == key);
    let value = found.map(|(_, value)| value).unwrap_or_default();
    let map = Value::Object(Map::from_iter([(key.to_owned(), value.clone())]));
    print_value(output, &map, |_| format!("{}\n", plain(&value)))
}
