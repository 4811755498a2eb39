//! `polis node update`: many nodes, one after the other, as far as the cluster can do without them.
//!
//! A node is installed first, which it does beside its work, and asked for only then to restart, right after the cluster was asked
//! whether it can do without it. So the decision is as fresh as it can be, and a fetch that takes long costs nobody anything.

mod rollout;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use polis_proto::api::node_management_client::NodeManagementClient;
use polis_proto::api::reboot_request::{NextBoot, Type};
use polis_proto::api::{ActivationMode as WireMode, OsImageRef, RebootRequest, UpdateNodeRequest};
use polis_proto::node_api::node_client::NodeClient;
use polis_proto::node_api::{BootStatus, GetStatusRequest};
use polis_rpc::NODE_MANAGEMENT_PORT;
use polis_update::ImageReference;
use tokio::time::{Instant, sleep, timeout};

use super::reach::{Reachable, of_listed};
use super::{NodeDocument, list, select};
use crate::arguments::{ActivationMode, UpdateNodesArguments};
use crate::cluster;
use crate::duration;
use crate::failure::Failure;
use crate::operator::{CallFailure, Operator};
use crate::view::{Progress, count};
use rollout::{AWAY_TIMEOUT, Decision, Lost, Rollout, Seen, View};

/// How often the cluster is looked at.
const POLL: Duration = Duration::from_secs(2);
/// Longest time that a node may take to say what it runs.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a node may take to fetch and install an image. It gives up to fetch it after 15 minutes by itself; a disk that
/// spins writes and reads back what it has got within a few more.
const LONGEST_INSTALLATION: Duration = Duration::from_secs(30 * 60);
/// The word for all nodes.
const ALL: &str = "all";

pub(super) fn run(arguments: &UpdateNodesArguments) -> Result<ExitCode, Failure> {
    Operator::run(&arguments.connection, "node update", async |operator| {
        let nodes = list::get(operator, "").await.map_err(|error| error.of("no node was updated"))?;
        let chosen = choose(&nodes, &arguments.ids, &arguments.exclude)?;
        let mut update = Update {
            operator,
            arguments,
            progress: Progress::start(),
            begin: Instant::now(),
            boots: Vec::new(),
            rollout: Rollout::new(
                chosen,
                arguments.max_unavailable.into(),
                arguments.bypass_quorum,
                arguments.activation_mode == ActivationMode::None,
            ),
        };
        update.run().await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The nodes that are meant, in the order in which the cluster lists them.
fn choose(nodes: &[NodeDocument], ids: &[String], exclude: &[String]) -> Result<Vec<String>, Failure> {
    let excluded = select::choose_all(nodes, exclude)?;
    let all = ids.iter().any(|id| id == ALL);
    if all && ids.len() > 1 {
        return Err(Failure::usage("no node was updated").because_of("`all` is given together with ids of nodes"));
    }
    let chosen: Vec<&NodeDocument> = if all {
        nodes.iter().filter(|node| node.is_up()).collect()
    } else {
        select::choose_all(nodes, ids)?.into_iter().map(|chosen| chosen.node).collect()
    };
    if let Some(other) = chosen.iter().find(|node| !node.is_up()) {
        return Err(Failure::failed("no node was updated")
            .because_of(format!("{} is {} and not an ordinary node of the cluster", other.node_id, other.state)));
    }
    let is_excluded = |node: &NodeDocument| excluded.iter().any(|chosen| chosen.node.node_id == node.node_id);
    let left: Vec<String> = chosen.iter().filter(|node| !is_excluded(node)).map(|node| node.node_id.clone()).collect();
    if left.is_empty() {
        return Err(Failure::usage("no node was updated").because_of("all nodes that were named are excluded"));
    }
    Ok(left)
}

struct Update<'a> {
    operator: &'a Operator,
    arguments: &'a UpdateNodesArguments,
    progress: Progress,
    begin: Instant,
    /// Boot ids of nodes that were told to restart, as they were before.
    boots: Vec<(String, Option<String>)>,
    rollout: Rollout,
}

impl Update<'_> {
    async fn run(&mut self) -> Result<(), Failure> {
        let mut told = String::new();
        loop {
            let (nodes, view) = match self.look().await {
                Ok(found) => found,
                // While a node is away it may be the one that led, or the one that is asked.
                Err(error) if self.is_any_away() => {
                    self.progress.waiting(&error.cause());
                    self.give_up_if_late()?;
                    sleep(POLL).await;
                    continue;
                }
                Err(error) => return Err(self.explain(error.of("the update stopped").into())),
            };
            self.welcome(&nodes).await?;
            match self.rollout.next(&view, self.begin.elapsed()) {
                Decision::Install(id) => self.install(&nodes, &id).await?,
                Decision::Restart(id) => self.restart(&nodes, &id).await?,
                Decision::Wait(why) => {
                    if told != why {
                        self.progress.line(&format!("waiting: {why}"));
                        told = why;
                    }
                    sleep(POLL).await;
                }
                Decision::Refuse(why) => return Err(self.refusal(&why)),
                Decision::Finished => {
                    let (done, _) = self.rollout.count();
                    let how = if self.arguments.activation_mode == ActivationMode::None {
                        "the image is installed, and tried at the next restart"
                    } else {
                        "the image runs"
                    };
                    self.progress.line(&format!("{how}: {}", count(done, "node")));
                    return Ok(());
                }
            }
        }
    }

    fn is_any_away(&self) -> bool {
        self.rollout.away().next().is_some()
    }

    /// What the cluster is like now.
    async fn look(&self) -> Result<(Vec<NodeDocument>, View), CallFailure> {
        let nodes = list::get(self.operator, "").await?;
        let status = cluster::get_status(self.operator).await?;
        let view = View {
            nodes: nodes
                .iter()
                .filter(|node| node.is_up())
                .map(|node| (node.node_id.clone(), node.is_healthy()))
                .collect(),
            voters: status.voters().map(|member| (member.node_id.clone(), member.reachable)).collect(),
            quorum: usize::try_from(status.quorum).unwrap_or(usize::MAX),
            leader: status.leader,
        };
        Ok((nodes, view))
    }

    async fn install(&mut self, nodes: &[NodeDocument], id: &str) -> Result<(), Failure> {
        let node = self.reach(nodes, id)?;
        let what = format!("{id} was not updated");
        self.progress.line(&format!("{id}: fetches and installs the image"));
        let request = UpdateNodeRequest {
            os_image: Some(wire(&self.arguments.image_ref)),
            activation_mode: WireMode::None.into(),
        };
        let mut client = NodeManagementClient::new(self.channel(&node));
        let asked = client.update_node(request);
        let answer = node.answer(self.operator, &what, LONGEST_INSTALLATION, asked).await;
        answer.map_err(|failure| self.explain(failure))?;
        let boot = self.boot_status(&node).await;
        let Some(BootStatus { running, next: Some(next) }) = boot else {
            return Err(self.explain(
                Failure::failed(what).because_of("it does not say which image it starts next, so it was not restarted"),
            ));
        };
        let runs = running.is_some_and(|running| running.sha256 == next.sha256);
        self.progress.line(&match runs {
            true => format!("{id}: runs version {} already", next.version),
            false => format!("{id}: has version {} in slot {}", next.version, next.slot),
        });
        self.rollout.installed(id, next.sha256, runs);
        Ok(())
    }

    async fn restart(&mut self, nodes: &[NodeDocument], id: &str) -> Result<(), Failure> {
        let node = self.reach(nodes, id)?;
        let kind = match self.arguments.activation_mode {
            ActivationMode::Reboot | ActivationMode::None => Type::Firmware,
            ActivationMode::Kexec => Type::Kexec,
        };
        let request = RebootRequest { r#type: kind.into(), next_boot: NextBoot::StartNormal.into() };
        let before = nodes.iter().find(|node| node.node_id == id).and_then(|node| node.boot_id.clone());
        // Once only: a second one would hit the node when it has just come back.
        let what = format!("{id} has the image and was not told to restart");
        let mut client = NodeManagementClient::new(self.channel(&node));
        let asked = client.reboot(request);
        let answer = node.answer(self.operator, &what, self.operator.timeout(), asked).await;
        answer.map_err(|failure| self.explain(failure))?;
        self.boots.push((id.to_owned(), before));
        self.rollout.restarted(id, self.begin.elapsed());
        self.progress.line(&format!("{id}: restarts"));
        Ok(())
    }

    /// Looks at the nodes that are away.
    async fn welcome(&mut self, nodes: &[NodeDocument]) -> Result<(), Failure> {
        let away: Vec<String> = self.rollout.away().map(str::to_owned).collect();
        for id in away {
            let Some(node) = nodes.iter().find(|node| node.node_id == id) else { continue };
            let before = self.boots.iter().find(|(known, _)| *known == id).and_then(|(_, boot)| boot.as_ref());
            let started_again = node.boot_id.is_some() && node.boot_id.as_ref() != before;
            let boot = match self.reach(nodes, &id) {
                Ok(reachable) if started_again => self.boot_status(&reachable).await,
                Ok(_) | Err(_) => None,
            };
            let image = boot.and_then(|boot| boot.running).map(|image| (image.sha256, image.good));
            let seen = Seen { healthy: node.is_healthy(), started_again, image };
            match self.rollout.seen(&id, &seen, self.begin.elapsed()) {
                Ok(false) => {}
                Ok(true) => {
                    let (done, of) = self.rollout.count();
                    self.progress.line(&format!("{id}: is back and well with the image; {done} of {of} done"));
                }
                Err(lost) => return Err(self.lost(&id, lost)),
            }
        }
        Ok(())
    }

    /// The time runs also while nobody tells how the nodes are.
    fn give_up_if_late(&mut self) -> Result<(), Failure> {
        let away: Vec<String> = self.rollout.away().map(str::to_owned).collect();
        for id in away {
            if let Err(lost) = self.rollout.seen(&id, &Seen::default(), self.begin.elapsed()) {
                return Err(self.lost(&id, lost).because_of("no leader answers meanwhile"));
            }
        }
        Ok(())
    }

    fn reach(&self, nodes: &[NodeDocument], id: &str) -> Result<Reachable, Failure> {
        let node = nodes.iter().find(|node| node.node_id == id);
        let node = node.ok_or_else(|| self.explain(Failure::failed(format!("there is no node {id} any more"))))?;
        of_listed(node, NODE_MANAGEMENT_PORT)
    }

    async fn boot_status(&self, node: &Reachable) -> Option<BootStatus> {
        let mut client = NodeClient::new(self.channel(node));
        timeout(ANSWER_TIMEOUT, client.get_status(GetStatusRequest {})).await.ok()?.ok()?.into_inner().boot
    }

    fn channel(&self, node: &Reachable) -> tonic::transport::Channel {
        let address: SocketAddr = node.address;
        self.operator.node_channel(node.id, address)
    }

    fn refusal(&self, why: &str) -> Failure {
        let failure = Failure::failed("the update stopped before it would have endangered the cluster").refused();
        let options = self.operator.options();
        let hint = format!(
            "bring the others back first: polis cluster health{options}\n\
             then run the same command again: nodes that run the image already are left alone\n\
             --max-unavailable lets more nodes be down at once; --bypass-quorum lets the cluster stand still while a member restarts"
        );
        self.explain(failure.because_of(why).hint(hint))
    }

    fn lost(&self, id: &str, lost: Lost) -> Failure {
        let within = duration::show(AWAY_TIMEOUT);
        let (what, cause, hint) = match lost {
            Lost::PreviousImage => (
                format!("{id} has gone back to the image that it had before"),
                "the new one was tried and did not prove itself, or could not be started".to_owned(),
                "see what it said: polis node logs",
            ),
            Lost::NotStarted => (
                format!("{id} has not come back within {within}"),
                "it was told to restart, and nothing shows that it has".to_owned(),
                "look at the machine: a reset starts the image before, if the new one hangs. Then: polis node describe",
            ),
            Lost::NotHealthy => (
                format!("{id} has restarted and is not well after {within}"),
                "the leader does not hear of it, or it does not say what it runs".to_owned(),
                "see what is wrong: polis node describe",
            ),
            Lost::NotProven => (
                format!("{id} runs the image, which does not count as good after {within}"),
                "a restart would go back to the image before".to_owned(),
                "see its conditions: polis cluster health; and: polis node logs",
            ),
        };
        let failure = Failure::failed(what).because_of(cause);
        self.explain_without(failure.hint(format!("{hint} {id}{}", self.operator.options())), Some(id))
    }

    /// Says what has become of all.
    fn explain(&self, failure: Failure) -> Failure {
        self.explain_without(failure, None)
    }

    /// Says what has become of the others.
    fn explain_without(&self, failure: Failure, lost: Option<&str>) -> Failure {
        let (done, of) = self.rollout.count();
        let mut lines = vec![format!("{done} of {of} nodes are done")];
        let list = |what: &str, ids: &[&str]| format!("{what}: {}", ids.join(", "));
        let away: Vec<&str> = self.rollout.away().filter(|id| Some(*id) != lost).collect();
        if !away.is_empty() {
            lines.push(list("also told to restart and not back yet", &away));
        }
        let left = self.rollout.left();
        if !left.is_empty() {
            lines.push(list("not restarted", &left));
        }
        failure.details(lines)
    }
}

fn wire(reference: &ImageReference) -> OsImageRef {
    OsImageRef {
        scheme: reference.scheme().to_owned(),
        host: reference.host().to_owned(),
        repository: reference.repository().to_owned(),
        tag: reference.tag().unwrap_or_default().to_owned(),
        digest: reference.digest().to_string(),
    }
}

#[cfg(test)]
mod tests;
