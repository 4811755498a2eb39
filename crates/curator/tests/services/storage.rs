//! A store that does not answer: whatever is asked, the answer is to ask again.

use polis_proto::api::update_node_labels_request::{Node as Target, Pair};
use polis_proto::api::{
    ApproveNodeRequest, ConfigureClusterRequest, DecommissionNodeRequest, DeleteNodeRequest, GetClusterInfoRequest,
    GetNodesRequest, GetRegisterTicketRequest, UpdateNodeLabelsRequest, decommission_node_request, delete_node_request,
};
use prost_types::FieldMask;
use tonic::Code;

use crate::roles::{give, only};
use crate::world::{World, code, settled};

fn signal(world: &World, name: &str) {
    let process_id = world.etcd.status().borrow().process_id.expect("etcd runs");
    let status = std::process::Command::new("kill").args([name, &process_id.to_string()]).status().unwrap();
    assert!(status.success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_the_store_are_never_the_fault_of_the_request() {
    let world = World::start().await;
    let node = world.healthy().await;
    let id = node.id().to_string();
    let management = world.management().await;
    let info = management.clone().get_cluster_info(GetClusterInfoRequest {}).await.unwrap().into_inner();
    let configure = ConfigureClusterRequest {
        base_config: None,
        new_config: info.cluster_configuration,
        update_mask: Some(FieldMask { paths: vec!["kubernetes.node_labels_to_synchronize".into()] }),
    };
    let labels = UpdateNodeLabelsRequest {
        node: Some(Target::Id(id.clone())),
        upsert: vec![Pair { key: "a".into(), value: "b".into() }],
        delete: Vec::new(),
    };
    let approve = ApproveNodeRequest { pubkey: node.key.public().as_bytes().to_vec() };
    let decommission = DecommissionNodeRequest { node: Some(decommission_node_request::Node::Id(id.clone())) };
    let delete = DeleteNodeRequest { node: Some(delete_node_request::Node::Id(id)), ..DeleteNodeRequest::default() };
    signal(&world, "-STOP");
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g] = std::array::from_fn(|_| management.clone());
    let codes = async {
        let (a, b, c, d, e, f, g, h, i) = tokio::join!(
            a.get_register_ticket(GetRegisterTicketRequest {}),
            b.get_cluster_info(GetClusterInfoRequest {}),
            c.get_nodes(GetNodesRequest::default()),
            d.approve_node(approve),
            e.update_node_labels(labels.clone()),
            f.decommission_node(decommission),
            g.delete_node(delete),
            give(&world, &node, only("kubernetes_worker")),
            async { management.clone().configure_cluster(configure).await },
        );
        [code(a), code(b), code(c), code(d), code(e), code(f), code(g), code(h), code(i)]
    };
    let codes = world.within("everybody is answered", codes).await;
    signal(&world, "-CONT");
    assert_eq!(codes, [Code::Unavailable; 9]);
    // And once it answers again, so do the services.
    settled(&world, async || management.clone().update_node_labels(labels.clone()).await).await.unwrap();
    world.finish().await;
}
