//! GetClusterInfo, ApproveNode, UpdateNodeLabels and ConfigureCluster.

use polis_proto::api::update_node_labels_request::{Node as Target, Pair};
use polis_proto::api::{ApproveNodeRequest, ConfigureClusterRequest, GetClusterInfoRequest, UpdateNodeLabelsRequest};
use polis_proto::common::ClusterConfiguration;
use polis_proto::common::cluster_configuration::Kubernetes;
use polis_proto::common::cluster_configuration::kubernetes::NodeLabelsToSynchronize;
use prost_types::FieldMask;
use tonic::Code;

use crate::world::{Machine, World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_info_is_what_a_machine_needs() {
    let world = World::start().await;
    world.register(&Machine::new()).await.unwrap();
    world.enrol().await;
    let node = world.healthy().await;
    let info = world.management().await.get_cluster_info(GetClusterInfoRequest {}).await.unwrap().into_inner();
    let directory = info.cluster_directory.unwrap().nodes;
    let found: Vec<_> = directory.iter().map(|node| (&*node.id, &*node.addresses[0].host)).collect();
    let (founder, address) = (world.etcd.node_id().to_string(), world.address.to_string());
    assert_eq!(found, [(&*founder, &*address), (&*node.id().to_string(), "127.9.9.9")], "the member comes first");
    assert_eq!(info.ca_certificate, world.authority.der());
    assert_eq!(info.cluster_configuration.unwrap().cluster_domain, "cluster.internal");
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_there_and_well_formed_is_approved() {
    let world = World::start().await;
    let mut management = world.management().await;
    for (pubkey, expected) in [
        (Machine::new().key.public().as_bytes().to_vec(), Code::NotFound),
        (vec![], Code::InvalidArgument),
        (vec![1; 31], Code::InvalidArgument),
        (vec![0; 32], Code::InvalidArgument),
        (world.etcd.node_key.public().as_bytes().to_vec(), Code::Ok),
    ] {
        assert_eq!(code(management.approve_node(ApproveNodeRequest { pubkey }).await), expected);
    }
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn labels_are_changed_by_one_request_at_a_time_and_none_is_lost() {
    let world = World::start().await;
    let id = world.etcd.node_id().to_string();
    let request = |upsert: &[(&str, &str)], delete: &[&str]| UpdateNodeLabelsRequest {
        node: Some(Target::Id(id.clone())),
        upsert: upsert.iter().map(|(key, value)| Pair { key: (*key).into(), value: (*value).into() }).collect(),
        delete: delete.iter().map(|key| (*key).into()).collect(),
    };
    let mut management = world.management().await;
    management.update_node_labels(request(&[("site", "lab"), ("gone", "1")], &[])).await.unwrap();
    management.update_node_labels(request(&[("site", "hall")], &["gone", "never-there"])).await.unwrap();
    let labels = async || world.node(&world.etcd.node_id()).await.labels.unwrap().pairs;
    let found: Vec<_> = labels().await.into_iter().map(|pair| (pair.key, pair.value)).collect();
    assert_eq!(found, [("site".to_owned(), "hall".to_owned())]);
    for (upsert, delete, expected) in [
        (&[("-", "1")][..], &[][..], Code::InvalidArgument),
        (&[("a", "1"), ("a", "2")], &[], Code::InvalidArgument),
        (&[("a", "1")], &["a"], Code::InvalidArgument),
        (&[], &["b", "b"], Code::InvalidArgument),
    ] {
        assert_eq!(code(management.update_node_labels(request(upsert, delete)).await), expected);
    }
    let nobody = UpdateNodeLabelsRequest { node: None, ..request(&[], &[]) };
    assert_eq!(code(management.update_node_labels(nobody).await), Code::InvalidArgument);
    let stranger = Some(Target::Pubkey(Machine::new().key.public().as_bytes().to_vec()));
    let stranger = UpdateNodeLabelsRequest { node: stranger, ..request(&[("a", "1")], &[]) };
    assert_eq!(code(management.update_node_labels(stranger).await), Code::NotFound);
    // Many at once: each is a change of the same record, and every one that is answered is there.
    let keys: Vec<String> = (0..12).map(|number| format!("k{number}")).collect();
    let changes = keys.iter().map(|key| {
        let mut management = management.clone();
        let request = request(&[(key, "v")], &[]);
        async move { management.update_node_labels(request).await }
    });
    for change in futures::future::join_all(changes).await {
        change.unwrap();
    }
    assert_eq!(labels().await.len(), 1 + keys.len());
    let many: Vec<(String, String)> = (0..128).map(|number| (format!("m{number}"), "v".into())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(code(management.update_node_labels(request(&many, &[])).await), Code::OutOfRange);
    world.finish().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_configuration_changes_where_it_can() {
    let world = World::start().await;
    let mut management = world.management().await;
    let present = async || {
        let info = world.management().await.get_cluster_info(GetClusterInfoRequest {}).await.unwrap().into_inner();
        info.cluster_configuration.unwrap()
    };
    let with = |configuration: &ClusterConfiguration, rule: &str| ClusterConfiguration {
        kubernetes: Some(Kubernetes {
            node_labels_to_synchronize: vec![NodeLabelsToSynchronize { regexp: rule.into() }],
        }),
        ..configuration.clone()
    };
    let mask = |path: &str| Some(FieldMask { paths: vec![path.into()] });
    let rules = "kubernetes.node_labels_to_synchronize";
    let before = present().await;
    let after = with(&before, "^example$");
    let request = ConfigureClusterRequest {
        base_config: Some(before.clone()),
        new_config: Some(after.clone()),
        update_mask: mask(rules),
    };
    let answer = management.configure_cluster(request.clone()).await.unwrap().into_inner();
    assert_eq!(answer.resulting_config, Some(after.clone()));
    assert_eq!(present().await, after);
    assert_eq!(code(management.configure_cluster(request.clone()).await), Code::FailedPrecondition, "an old base");
    for (request, expected) in [
        (ConfigureClusterRequest { update_mask: None, ..request.clone() }, Code::InvalidArgument),
        (ConfigureClusterRequest { new_config: None, ..request.clone() }, Code::InvalidArgument),
        (ConfigureClusterRequest { update_mask: mask("tpm_mode"), ..request.clone() }, Code::InvalidArgument),
        (ConfigureClusterRequest::default(), Code::InvalidArgument),
        (ConfigureClusterRequest { base_config: None, ..request }, Code::Ok),
    ] {
        assert_eq!(code(management.configure_cluster(request).await), expected);
    }
    world.finish().await;
}
