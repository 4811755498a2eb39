//! What the cluster's TPM mode and storage policy ask of machines, through the wire.

use polis_proto::common::NodeTpmUsage;
use polis_proto::common::cluster_configuration::{StorageSecurityPolicy, TpmMode};
use polis_proto::curator_api::curator_client::CuratorClient;
use polis_proto::curator_api::{JoinNodeRequest, RegisterNodeRequest};
use polis_rpc::ClientIdentity;
use tonic::Code;

use crate::world::{AUTHENTICATED, INSECURE, Machine, World, code};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_ways_to_register_and_how_each_may_join() {
    use NodeTpmUsage::{NotPresent, PresentAndUsed, PresentButUnused};
    for (mode, cases) in [
        (TpmMode::Required, [(true, Some((PresentAndUsed, true))), (false, None)]),
        (TpmMode::BestEffort, [(true, Some((PresentAndUsed, true))), (false, Some((NotPresent, false)))]),
        (TpmMode::Disabled, [(true, Some((PresentButUnused, false))), (false, Some((NotPresent, false)))]),
    ] {
        let world = World::start_with(mode, StorageSecurityPolicy::Permissive).await;
        for (have_local_tpm, expected) in cases {
            let machine = Machine::new();
            let request = RegisterNodeRequest { have_local_tpm, ..machine.registration(&world.ticket().await) };
            let mut curator = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.key)));
            let answer = curator.register_node(request).await;
            let Some((usage, sealed)) = expected else {
                assert_eq!(code(answer), Code::PermissionDenied, "{mode:?}");
                continue;
            };
            assert_eq!(answer.unwrap().into_inner().tpm_usage(), usage, "{mode:?}, {have_local_tpm}");
            world.approve(&machine).await.unwrap();
            world.commit(&machine, AUTHENTICATED, &[5; 32]).await.unwrap();
            assert_eq!(world.node(&machine.id()).await.tpm_usage(), usage);
            let mut joins = CuratorClient::new(world.channel(&ClientIdentity::ephemeral(&machine.join_key)));
            for using_sealed_configuration in [true, false] {
                let joined = joins.join_node(JoinNodeRequest { using_sealed_configuration }).await;
                let expected = if using_sealed_configuration == sealed { Code::Ok } else { Code::PermissionDenied };
                assert_eq!(code(joined), expected, "{mode:?}, {have_local_tpm}, {using_sealed_configuration}");
            }
        }
        world.finish().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn storage_must_be_as_the_policy_wants_it() {
    let world = World::start_with(TpmMode::Disabled, StorageSecurityPolicy::NeedsEncryptionAndAuthentication).await;
    let machine = Machine::new();
    world.register(&machine).await.unwrap();
    // The policy counts whether or not the machine may commit by now.
    for _ in 0..2 {
        assert_eq!(code(world.commit(&machine, INSECURE, &[]).await), Code::FailedPrecondition);
        assert_eq!(code(world.commit(&machine, 2, &[1; 32]).await), Code::FailedPrecondition);
        world.approve(&machine).await.unwrap();
    }
    world.commit(&machine, AUTHENTICATED, &[1; 32]).await.unwrap();
    world.finish().await;
}
