//! How the cluster on this machine is reached by the commands of an operator.

use std::net::SocketAddr;
use std::time::Duration;

use polis_rpc::CURATOR_PORT;

use super::directory::Directory;
use super::record::Record;
use super::start::address_of;
use crate::arguments::{ConfigurationArguments, ConnectionArguments};
use crate::failure::Failure;
use crate::{endpoint, shell};

/// The options of a connection to the cluster, for at most this long.
///
/// The first CA that is seen is believed: it is shown by processes of this user at addresses of this machine.
pub(super) fn connection(
    directory: &Directory,
    record: &Record,
    timeout: Duration,
) -> Result<ConnectionArguments, Failure> {
    Ok(ConnectionArguments {
        configuration: ConfigurationArguments { config: Some(directory.owner()) },
        endpoints: endpoints(record)?,
        timeout,
        insecure_accept_and_persist_first_encountered_ca: true,
    })
}

/// The curators of all nodes.
pub(super) fn endpoints(record: &Record) -> Result<Vec<SocketAddr>, Failure> {
    record.numbers().map(|number| Ok(SocketAddr::new(address_of(record, number)?, CURATOR_PORT))).collect()
}

/// ` --config DIR --endpoints ADDR` for commands that are to be pasted.
pub(super) fn options(directory: &Directory, record: &Record) -> Result<String, Failure> {
    let endpoints: String =
        endpoints(record)?.into_iter().map(|address| format!(" --endpoints {}", endpoint::show(address))).collect();
    Ok(format!(" --config {}{endpoints}", shell::quote(&directory.owner())))
}
