//! IssueCertificate.

use polis_identity::{Certificate, NodeKey, verify_certificate_authority, verify_in_cluster};
use polis_proto::curator_api::IssueCertificateRequest;
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::issue_certificate_request::{self, Kind};
use polis_proto::curator_api::issue_certificate_response;
use tonic::Code;

use crate::roles::{give, only};
use crate::world::{World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_gets_its_certificates() {
    let world = World::start().await;
    let node = world.enrol().await;
    let keys = [(); 3].map(|()| NodeKey::generate().public());
    let [kubelet, csi, net] = keys.map(|key| key.as_bytes().to_vec());
    let worker = issue_certificate_request::KubernetesWorker {
        kubelet_pubkey: kubelet,
        csi_provisioner_pubkey: csi,
        netservices_pubkey: net,
    };
    let request = |worker| IssueCertificateRequest { kind: Some(Kind::KubernetesWorker(worker)) };
    let mut curator = world.curator_of(&node);
    assert_eq!(code(curator.issue_certificate(request(worker.clone())).await), Code::PermissionDenied, "no worker");
    give(&world, &node, only("kubernetes_worker")).await.unwrap();
    for short in [
        issue_certificate_request::KubernetesWorker { kubelet_pubkey: vec![1; 31], ..worker.clone() },
        issue_certificate_request::KubernetesWorker { csi_provisioner_pubkey: vec![], ..worker.clone() },
        issue_certificate_request::KubernetesWorker { netservices_pubkey: vec![1; 33], ..worker.clone() },
    ] {
        assert_eq!(code(curator.issue_certificate(request(short)).await), Code::InvalidArgument);
    }
    assert_eq!(code(curator.issue_certificate(IssueCertificateRequest { kind: None }).await), Code::InvalidArgument);
    let mut owner = CuratorClient::new(world.owner().await);
    assert_eq!(code(owner.issue_certificate(request(worker.clone())).await), Code::PermissionDenied, "only nodes");
    let issued = curator.issue_certificate(request(worker.clone())).await.unwrap().into_inner();
    let Some(issue_certificate_response::Kind::KubernetesWorker(issued)) = issued.kind else { panic!("the kind") };
    let authority = Certificate::from_der(issued.identity_ca_certificate.clone()).unwrap();
    let authority = verify_certificate_authority(authority).unwrap();
    assert_ne!(authority.der(), world.authority.der(), "an authority of its own");
    for (certificate, key) in [
        (issued.kubelet_server_certificate, keys[0]),
        (issued.kubelet_client_certificate, keys[0]),
        (issued.csi_provisioner_certificate, keys[1]),
        (issued.netservices_certificate, keys[2]),
    ] {
        let certificate = Certificate::from_der(certificate).unwrap();
        assert_eq!(verify_in_cluster(&certificate, &authority), Ok(key));
    }
    let again = curator.issue_certificate(request(worker)).await.unwrap().into_inner();
    let Some(issue_certificate_response::Kind::KubernetesWorker(again)) = again.kind else { panic!("the kind") };
    assert_eq!(again.identity_ca_certificate, issued.identity_ca_certificate);
    world.finish().await;
}
