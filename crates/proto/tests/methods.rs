//! Which RPCs there are, and who may call each.

use polis_proto::FILE_DESCRIPTOR_SET;
use polis_proto::authorization::Authorization::{AllowUnauthenticated, Need};
use polis_proto::authorization::{Authorization, METHODS, of};
use polis_proto::ext::Permission::{
    self, ApproveNode, ConfigureCluster, DecommissionNode, DeleteNode, GetRegisterTicket, NodePowerManagement,
    ReadClusterStatus, ReadNodeLogs, UpdateNode, UpdateNodeLabels, UpdateNodeRoles, UpdateNodeSelf,
};
use prost::Message;
use prost_types::FileDescriptorSet;

/// How messages flow: which sides send a stream.
#[derive(Clone, Copy)]
enum Flow {
    Unary,
    Answers,
    Both,
}
use Flow::{Answers, Both, Unary};

const CURATOR: &str = "metropolis.node.core.curator.proto.api.Curator";
const LOCAL: &str = "metropolis.node.core.curator.proto.api.CuratorLocal";
const AAA: &str = "metropolis.proto.api.AAA";
const MANAGEMENT: &str = "metropolis.proto.api.Management";
const NODE_MANAGEMENT: &str = "metropolis.proto.api.NodeManagement";
const CLUSTER: &str = "polis.cluster.v1.Cluster";
const ENROLMENT: &str = "polis.enrolment.v1.Enrolment";
const NODE: &str = "polis.node.v1.Node";
const UNLOCK: &str = "polis.unlock.v1.Unlock";

const EXPECTED: [(&str, &str, Authorization, Flow); 46] = [
    (CURATOR, "CommitNode", AllowUnauthenticated, Unary),
    (CURATOR, "GetConsensusStatus", Need(&[ReadClusterStatus]), Unary),
    (CURATOR, "Heartbeat", Need(&[UpdateNodeSelf]), Both),
    (CURATOR, "IssueCertificate", Need(&[UpdateNodeSelf]), Unary),
    (CURATOR, "JoinNode", AllowUnauthenticated, Unary),
    (CURATOR, "RegisterNode", AllowUnauthenticated, Unary),
    (CURATOR, "UpdateNodeClusterNetworking", Need(&[UpdateNodeSelf]), Unary),
    (CURATOR, "UpdateNodeStatus", Need(&[UpdateNodeSelf]), Unary),
    (CURATOR, "Watch", Need(&[ReadClusterStatus]), Answers),
    (LOCAL, "GetCACertificate", AllowUnauthenticated, Unary),
    (LOCAL, "GetCurrentLeader", AllowUnauthenticated, Answers),
    (AAA, "Escrow", AllowUnauthenticated, Both),
    (MANAGEMENT, "ApproveNode", Need(&[ApproveNode]), Unary),
    (MANAGEMENT, "ConfigureCluster", Need(&[ConfigureCluster]), Unary),
    (MANAGEMENT, "DecommissionNode", Need(&[DecommissionNode]), Unary),
    (MANAGEMENT, "DeleteNode", Need(&[DeleteNode]), Unary),
    (MANAGEMENT, "GetClusterInfo", Need(&[ReadClusterStatus]), Unary),
    (MANAGEMENT, "GetNodes", Need(&[ReadClusterStatus]), Answers),
    (MANAGEMENT, "GetRegisterTicket", Need(&[GetRegisterTicket]), Unary),
    (MANAGEMENT, "UpdateNodeLabels", Need(&[UpdateNodeLabels]), Unary),
    (MANAGEMENT, "UpdateNodeRoles", Need(&[UpdateNodeRoles]), Unary),
    (NODE_MANAGEMENT, "Logs", Need(&[ReadNodeLogs]), Answers),
    (NODE_MANAGEMENT, "Reboot", Need(&[NodePowerManagement]), Unary),
    (NODE_MANAGEMENT, "UpdateNode", Need(&[UpdateNode]), Unary),
    (CLUSTER, "ConfirmTwo", Need(&[ConfigureCluster]), Unary),
    (CLUSTER, "GetRecoveryBlob", Need(&[ConfigureCluster]), Unary),
    (CLUSTER, "GetStatus", Need(&[ReadClusterStatus]), Unary),
    (CLUSTER, "RotateOwner", Need(&[ConfigureCluster]), Unary),
    (CLUSTER, "RotateRegisterTicket", Need(&[ConfigureCluster]), Unary),
    (CLUSTER, "SetRecoveryKey", Need(&[ConfigureCluster]), Unary),
    (ENROLMENT, "CheckUnlockKey", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "GetMembers", Need(&[ReadClusterStatus]), Unary),
    (ENROLMENT, "GetTombstone", AllowUnauthenticated, Unary),
    (ENROLMENT, "ProposeOwner", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "ReplaceMember", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "ReportNode", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "StoreRecoveryBlob", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "StoreUnlockKey", Need(&[UpdateNodeSelf]), Unary),
    (ENROLMENT, "WatchOrders", Need(&[ReadClusterStatus]), Answers),
    (NODE, "GetStatus", Need(&[ReadClusterStatus]), Unary),
    (NODE, "Rekey", Need(&[NodePowerManagement]), Unary),
    (NODE, "Reseal", Need(&[NodePowerManagement]), Unary),
    (NODE, "SaveSnapshot", Need(&[ConfigureCluster]), Answers),
    (UNLOCK, "GetLock", AllowUnauthenticated, Unary),
    (UNLOCK, "Recover", AllowUnauthenticated, Unary),
    (UNLOCK, "Unlock", AllowUnauthenticated, Unary),
];

#[test]
fn every_rpc_has_the_permission_of_the_contract() {
    for (service, name, authorization, flow) in EXPECTED {
        let path = format!("/{service}/{name}");
        let method = of(&path).unwrap_or_else(|| panic!("{path} is missing"));
        assert_eq!((method.path, method.service, method.name), (path.as_str(), service, name));
        assert_eq!(method.authorization, authorization, "{path}");
        let streams = (method.client_streaming, method.server_streaming);
        assert_eq!(streams, (matches!(flow, Both), !matches!(flow, Unary)), "{path}");
    }
    assert_eq!(METHODS.len(), EXPECTED.len(), "an RPC is not in the list of this test");
}

#[test]
fn no_rpc_is_left_out_of_the_table() {
    let descriptors = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
    let mut paths = Vec::new();
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                paths.push(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    paths.sort();
    assert_eq!(paths, METHODS.iter().map(|method| method.path).collect::<Vec<_>>());
}

#[test]
fn an_unknown_path_is_no_method() {
    for path in ["", "/", "/metropolis.proto.api.NodeDebugService/Trace", "metropolis.proto.api.AAA/Escrow"] {
        assert_eq!(of(path), None, "{path}");
    }
}

#[test]
fn permissions_have_the_numbers_of_the_contract() {
    let numbers = [
        (Permission::Unspecified, 0, "PERMISSION_UNSPECIFIED"),
        (GetRegisterTicket, 1, "PERMISSION_GET_REGISTER_TICKET"),
        (ReadClusterStatus, 2, "PERMISSION_READ_CLUSTER_STATUS"),
        (UpdateNodeSelf, 3, "PERMISSION_UPDATE_NODE_SELF"),
        (ApproveNode, 4, "PERMISSION_APPROVE_NODE"),
        (UpdateNodeRoles, 5, "PERMISSION_UPDATE_NODE_ROLES"),
        (ReadNodeLogs, 6, "PERMISSION_READ_NODE_LOGS"),
        (UpdateNode, 7, "PERMISSION_UPDATE_NODE"),
        (DecommissionNode, 8, "PERMISSION_DECOMMISSION_NODE"),
        (DeleteNode, 9, "PERMISSION_DELETE_NODE"),
        (UpdateNodeLabels, 10, "PERMISSION_UPDATE_NODE_LABELS"),
        (NodePowerManagement, 11, "PERMISSION_NODE_POWER_MANAGEMENT"),
        (ConfigureCluster, 12, "PERMISSION_CONFIGURE_CLUSTER"),
    ];
    for (permission, number, name) in numbers {
        assert_eq!((permission as i32, permission.as_str_name()), (number, name));
    }
    assert!(Permission::try_from(13).is_err(), "a permission is not in the list of this test");
}
