//! `polis parameters register`.

use std::process::ExitCode;

use polis_parameters::Labels;
use polis_proto::api::{GetClusterInfoResponse, NodeParameters, node_parameters};
use polis_proto::common::ClusterDirectory;
use prost::Message as _;

use super::bootstrap::{parse_labels, report_output};
use crate::arguments::RegisterArguments;
use crate::atomic_file::Existing;
use crate::cluster;
use crate::failure::Failure;
use crate::operator::Operator;

/// Mode of a parameters file with a ticket: for its owner only.
pub(crate) const MODE: u32 = 0o600;

pub(super) fn run(arguments: &RegisterArguments) -> Result<ExitCode, Failure> {
    let labels = parse_labels(&arguments.labels)?;
    let bytes = Operator::run(&arguments.connection, "parameters register", async |operator| {
        register_file(operator, &labels).await
    })?;
    let existing = if arguments.force { Existing::Replace } else { Existing::Keep };
    report_output(&arguments.output, &bytes, MODE, existing)
}

/// The bytes of a file with which a machine asks the cluster for admission.
///
/// # Errors
///
/// When the cluster does not answer, or does not know where its nodes are.
pub(crate) async fn register_file(operator: &Operator, labels: &Labels) -> Result<Vec<u8>, Failure> {
    let info = cluster::get_info(operator).await?;
    let ticket = cluster::ticket(operator).await?;
    build(info, ticket, labels).ok_or_else(|| {
        Failure::failed("a machine could not find the cluster")
            .because_of("the cluster does not know the address of any of its nodes")
            .hint(format!("see how the nodes are: polis node list{}", operator.options()))
    })
}

/// `None` when there is no address to ask at. A node without an address would make the whole file invalid.
fn build(info: GetClusterInfoResponse, ticket: Vec<u8>, labels: &Labels) -> Option<Vec<u8>> {
    let mut nodes = info.cluster_directory.unwrap_or_default().nodes;
    nodes.retain(|node| !node.addresses.is_empty());
    if nodes.is_empty() {
        return None;
    }
    let register = node_parameters::ClusterRegister {
        cluster_directory: Some(ClusterDirectory { nodes }),
        register_ticket: ticket,
        ca_certificate: info.ca_certificate,
        labels: Some(labels.to_wire()),
    };
    let cluster = Some(node_parameters::Cluster::ClusterRegister(register));
    Some(NodeParameters { cluster, network_config: None }.encode_to_vec())
}

#[cfg(test)]
mod tests {
    use polis_identity::{CLUSTER_AUTHORITY_NAME, CertificateAuthority};
    use polis_parameters::{ClusterParameters, Parameters};
    use polis_proto::common::cluster_directory::{Node, node::Address};

    use super::*;

    #[test]
    fn what_is_written_is_what_a_node_reads() {
        let authority = CertificateAuthority::generate(CLUSTER_AUTHORITY_NAME);
        let node = |id: &str, hosts: &[&str]| Node {
            id: id.into(),
            addresses: hosts.iter().map(|host| Address { host: (*host).into() }).collect(),
        };
        let info = |nodes| GetClusterInfoResponse {
            cluster_directory: Some(ClusterDirectory { nodes }),
            ca_certificate: authority.certificate().der().to_vec(),
            cluster_configuration: None,
        };
        let mut labels = Labels::default();
        labels.push("site=lab".parse().unwrap()).unwrap();
        let nodes = vec![node("a", &["127.1.0.1"]), node("b", &[]), node("c", &["127.1.0.3"])];
        let ticket = [&[0x0a, 32][..], &[7; 32]].concat();
        let bytes = build(info(nodes), ticket, &labels).unwrap();
        match Parameters::parse(&bytes).unwrap().cluster {
            ClusterParameters::Register(found) => {
                assert_eq!(
                    found.addresses,
                    ["127.1.0.1", "127.1.0.3"].map(|text| text.parse::<std::net::IpAddr>().unwrap())
                );
                assert_eq!(&found.certificate_authority, authority.certificate());
                assert_eq!(found.labels, labels);
            }
            ClusterParameters::Bootstrap(_) => unreachable!("register was written"),
        }
        assert_eq!(build(info(vec![node("b", &[])]), vec![7; 34], &labels), None);
    }
}
