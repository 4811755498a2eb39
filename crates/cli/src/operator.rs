//! How an operator's commands reach a cluster.
//!
//! [`Operator::run`] finds the configuration, makes sure whose CA is believed ([`trust`]), and runs a command with an
//! [`Operator`], which finds the leader over all endpoints at once and calls it ([`Operator::call`]). A call that found no
//! leader, or one that is just being replaced, is repeated until the time is over, as far as repeating is harmless.

mod call_failure;
mod escrow;
mod trust;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use futures::future::join_all;
use polis_identity::{AuthorityCertificate, NodeId, OwnerKey};
use polis_proto::curator_api::GetCaCertificateRequest;
use polis_proto::curator_api::curator_local_client::CuratorLocalClient;
use polis_rpc::{
    CallError, CallPolicy, ClientIdentity, ClusterClient, ConnectError, Connector, ExpectedServer, Search,
    ServerRefusal, connect_error, detail,
};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::arguments::ConnectionArguments;
use crate::configuration::Configuration;
use crate::duration;
use crate::failure::Failure;
use crate::node_status::runtime;
use crate::view::Progress;

pub(crate) use call_failure::{CallFailure, at, node_failure};
pub(crate) use escrow::escrow;
pub(crate) use trust::fingerprint;

/// How often the line of what is being waited for is written anew; the first time after this long.
const REFRESH: Duration = Duration::from_millis(500);

/// How long a call must have taken for its repetitions to be worth a line. A member that starts anew with another timing, as the
/// first one does when the second joins, is back within a second, and nobody has noticed.
const WORTH_TELLING: Duration = Duration::from_secs(2);

/// Longest time that one try of a question may take before it is put again: a leader that hangs is replaced after this. A
/// change has no such limit, as the leader may wait for others while it makes it; there the connection's keepalive decides.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(10);

/// What to do when it is not known whether a call was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Make it again: doing it twice is the same as doing it once.
    Always,
    /// Give up, and say that the outcome is not known. A call that surely did nothing is made again.
    OnlyIfNothingWasDone,
}

/// A connection to a cluster, as somebody.
#[derive(Debug)]
pub(crate) struct Operator {
    configuration: Configuration,
    authority: AuthorityCertificate,
    identity: ClientIdentity,
    client: ClusterClient,
    endpoints: Vec<SocketAddr>,
    timeout: Duration,
    options: String,
}

impl Operator {
    /// Runs a command as the owner. `name` is the command, for messages.
    ///
    /// # Errors
    ///
    /// When something of the configuration is missing, and what the command says.
    pub(crate) fn run<T>(
        arguments: &ConnectionArguments,
        name: &str,
        command: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        runtime()?.block_on(Self::run_here(arguments, name, command))
    }

    /// As [`Operator::run`], for callers that wait for something else at the same time.
    ///
    /// # Errors
    ///
    /// As [`Operator::run`].
    pub(crate) async fn run_here<T>(
        arguments: &ConnectionArguments,
        name: &str,
        command: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let configuration = Configuration::resolve(&arguments.configuration)?;
        let authority = Self::trusted(&configuration, arguments, name).await?;
        let credentials = configuration.credentials(&authority)?;
        let identity = ClientIdentity::user(&credentials.key, &credentials.certificate)
            .map_err(|error| Failure::usage("the owner certificate is of no use").because(&error))?;
        Self::new(configuration, authority, identity, arguments).serve(command).await
    }

    /// Runs a command as whoever holds the owner key, without a certificate.
    ///
    /// # Errors
    ///
    /// As [`Operator::run`].
    pub(crate) fn run_with_key<T>(
        arguments: &ConnectionArguments,
        name: &str,
        command: impl AsyncFnOnce(&Self, &OwnerKey) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        runtime()?.block_on(async {
            let configuration = Configuration::resolve(&arguments.configuration)?;
            let key = configuration.key()?;
            let authority = Self::trusted(&configuration, arguments, name).await?;
            let identity = ClientIdentity::ephemeral(&key);
            let operator = Self::new(configuration, authority, identity, arguments);
            operator.serve(async |operator| command(operator, &key).await).await
        })
    }

    /// Runs a command of somebody else at the same cluster: with a key of its own that has no certificate.
    ///
    /// # Errors
    ///
    /// What the command says.
    pub(crate) async fn with_key<T>(
        &self,
        key: &OwnerKey,
        command: impl AsyncFnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let identity = ClientIdentity::ephemeral(key);
        let (_, endpoints) = watch::channel(self.endpoints.clone());
        let other = Self {
            configuration: self.configuration.clone(),
            authority: self.authority.clone(),
            client: ClusterClient::new(identity.clone(), self.authority.clone(), endpoints),
            identity,
            endpoints: self.endpoints.clone(),
            timeout: self.timeout,
            options: self.options.clone(),
        };
        other.serve(command).await
    }

    async fn trusted(
        configuration: &Configuration,
        arguments: &ConnectionArguments,
        name: &str,
    ) -> Result<AuthorityCertificate, Failure> {
        if arguments.endpoints.is_empty() {
            return Err(Failure::usage("it is not known where the cluster is")
                .because_of("neither --endpoints was given nor POLIS_ENDPOINTS is set")
                .hint(format!("name a node of it: polis {name} --endpoints 192.0.2.10")));
        }
        let command = format!("{name}{}", options(configuration, arguments));
        trust::authority(configuration, arguments, &command).await
    }

    fn new(
        configuration: Configuration,
        authority: AuthorityCertificate,
        identity: ClientIdentity,
        arguments: &ConnectionArguments,
    ) -> Self {
        let options = options(&configuration, arguments);
        // The list of endpoints does not change, so its sender is not needed.
        let (_, endpoints) = watch::channel(arguments.endpoints.clone());
        let client = ClusterClient::new(identity.clone(), authority.clone(), endpoints);
        let (endpoints, timeout) = (arguments.endpoints.clone(), arguments.timeout);
        Self { configuration, authority, identity, client, endpoints, timeout, options }
    }

    async fn serve<T>(self, command: impl AsyncFnOnce(&Self) -> Result<T, Failure>) -> Result<T, Failure> {
        tokio::select! {
            result = command(&self) => result,
            never = self.client.run() => match never {},
        }
    }

    pub(crate) const fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    pub(crate) const fn authority(&self) -> &AuthorityCertificate {
        &self.authority
    }

    pub(crate) fn endpoints(&self) -> &[SocketAddr] {
        &self.endpoints
    }

    pub(crate) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// ` --config DIR --endpoints ADDR` for commands that are to be pasted, without what the environment says.
    pub(crate) fn options(&self) -> &str {
        &self.options
    }

    /// A channel to the curator at `address`, whichever node of the cluster that is.
    pub(crate) fn endpoint_channel(&self, address: SocketAddr) -> Channel {
        Connector::new(&self.identity, ExpectedServer::Cluster(self.authority.clone())).channel(address)
    }

    /// A channel to this node and no other.
    pub(crate) fn node_channel(&self, node: NodeId, address: SocketAddr) -> Channel {
        Connector::new(&self.identity, ExpectedServer::Node(self.authority.clone(), node)).channel(address)
    }

    /// Has the leader change something. `what` has failed if this fails; that it had to be repeated is said when that took a while.
    ///
    /// # Errors
    ///
    /// When the leader refuses, or none answers in time.
    pub(crate) async fn call<T>(
        &self,
        what: &str,
        repeat: Repeat,
        call: impl AsyncFn(Channel) -> Result<T, Status>,
    ) -> Result<T, CallFailure> {
        let begin = Instant::now();
        let (answer, attempts) = self.call_counted(what, repeat, false, call).await;
        if answer.is_ok() && attempts > 1 && begin.elapsed() >= WORTH_TELLING {
            Progress::start()
                .line(&format!("the leader was replaced or did not answer; it was asked {attempts} times"));
        }
        answer
    }

    /// Asks the leader something. A leader that hangs is asked again.
    ///
    /// # Errors
    ///
    /// When the leader refuses, or none answers in time.
    pub(crate) async fn ask<T>(
        &self,
        what: &str,
        call: impl AsyncFn(Channel) -> Result<T, Status>,
    ) -> Result<T, CallFailure> {
        let limited = async |channel| {
            let answer = tokio::time::timeout(QUESTION_TIMEOUT, call(channel)).await;
            answer.unwrap_or_else(|_| Err(Status::unavailable("the leader did not answer in time")))
        };
        self.call_counted(what, Repeat::Always, true, limited).await.0
    }

    /// The answer, and how often it was asked for.
    async fn call_counted<T>(
        &self,
        what: &str,
        repeat: Repeat,
        is_question: bool,
        call: impl AsyncFn(Channel) -> Result<T, Status>,
    ) -> (Result<T, CallFailure>, u32) {
        let attempts = Cell::new(0_u32);
        let counted = async |channel| {
            attempts.set(attempts.get().saturating_add(1));
            call(channel).await
        };
        let answer = async {
            match repeat {
                Repeat::Always => self.client.call(CallPolicy::within(self.timeout), &counted).await,
                Repeat::OnlyIfNothingWasDone => self.call_once(counted).await,
            }
        };
        let answer = self.showing_search(async {
            tokio::select! {
                answer = answer => answer,
                (address, status) = self.disbelieved() => Err(CallError::Refused { address, status }),
            }
        });
        let error = match answer.await {
            Ok(value) => return (Ok(value), attempts.get()),
            Err(error) => error,
        };
        let foreign = match &error {
            CallError::OutOfTime { last: None, .. } => self.foreign_endpoints().await,
            CallError::OutOfTime { last: Some(_), .. } | CallError::Refused { .. } => Vec::new(),
        };
        let (attempts, what, options) = (attempts.get(), what.to_owned(), self.options.clone());
        (Err(CallFailure { what, attempts, repeat, is_question, error, options, foreign }), attempts)
    }

    /// Ends when it is sure that nobody will answer because the certificate is not believed any more: a node refuses such a caller
    /// whatever the question, and looking for a leader would only end with the time.
    async fn disbelieved(&self) -> (SocketAddr, Status) {
        tokio::time::sleep(REFRESH).await;
        let answers = join_all(self.endpoints.iter().map(|address| async {
            let mut client = CuratorLocalClient::new(self.endpoint_channel(*address));
            let answer = tokio::time::timeout(QUESTION_TIMEOUT, client.get_ca_certificate(GetCaCertificateRequest {}));
            (*address, answer.await.unwrap_or_else(|_| Err(Status::unavailable("no answer"))))
        }))
        .await;
        let is_believed = answers.iter().any(|(_, answer)| answer.is_ok());
        let mut refusals = answers.into_iter().filter_map(|(address, answer)| Some((address, answer.err()?)));
        match refusals
            .find(|(_, status)| status.code() == Code::Unauthenticated && !polis_rpc::is_transport_failure(status))
        {
            Some(refusal) if !is_believed => refusal,
            Some(_) | None => std::future::pending().await,
        }
    }

    /// Endpoints that are nodes, but not of this cluster.
    async fn foreign_endpoints(&self) -> Vec<SocketAddr> {
        let expected = ExpectedServer::Cluster(self.authority.clone());
        let connector = Connector::new(&self.identity, expected);
        let connects = join_all(self.endpoints.iter().map(|address| connector.connect(*address))).await;
        let is_foreign = |error: &ConnectError| {
            matches!(error, ConnectError::NotExpected { source: ServerRefusal::OtherCluster { .. }, .. })
        };
        connects.into_iter().filter_map(Result::err).filter(is_foreign).map(|error| error.address()).collect()
    }

    /// Makes a call that may be made again only when the last one surely did nothing: there was no connection, or the answer
    /// was that another node leads.
    async fn call_once<T>(&self, call: impl AsyncFn(Channel) -> Result<T, Status>) -> Result<T, CallError> {
        let deadline = Instant::now() + self.timeout;
        let (mut last, mut made) = (None, 0);
        while let Ok(leader) = timeout_at(deadline, self.client.leader()).await {
            made += 1;
            let Ok(answer) = timeout_at(deadline, call(leader.channel.clone())).await else {
                last = Some((leader.address, Status::deadline_exceeded("the leader did not answer in time")));
                break;
            };
            let status = match answer {
                Ok(value) => return Ok(value),
                Err(status) => status,
            };
            self.client.doubt(&leader, &status);
            if detail::leader(&status).is_none() && connect_error(&status).is_none() {
                return Err(CallError::Refused { address: leader.address, status });
            }
            last = Some((leader.address, status));
            tokio::time::sleep(REFRESH.min(deadline.saturating_duration_since(Instant::now()))).await;
        }
        let failures = self.client.search().borrow().failures();
        Err(CallError::OutOfTime { after: self.timeout, attempts: made, last, failures })
    }

    /// Shows on a terminal why there is no answer yet.
    async fn showing_search<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = std::pin::pin!(answer);
        let progress = Progress::start();
        let begin = Instant::now();
        loop {
            match tokio::time::timeout(REFRESH, &mut answer).await {
                Ok(value) => return value,
                Err(_) => {
                    let waited = duration::show(begin.elapsed());
                    let text = match &*self.client.search().borrow() {
                        Search::Found(leader) => format!("waiting for the leader at {} for {waited}", leader.address),
                        Search::Searching { failures, .. } => {
                            let first =
                                failures.iter().next().map(|(address, failure)| format!(" ({})", failure.at(*address)));
                            format!("no leader found for {waited}{}", first.unwrap_or_default())
                        }
                    };
                    progress.waiting(&text);
                }
            }
        }
    }
}

/// The options that lead later commands to the same cluster; what the environment says anyway is left out.
fn options(configuration: &Configuration, arguments: &ConnectionArguments) -> String {
    let from_environment = std::env::var("POLIS_ENDPOINTS").unwrap_or_default();
    let given: Vec<String> = arguments.endpoints.iter().map(ToString::to_string).collect();
    let is_known = !from_environment.is_empty()
        && from_environment
            .split(',')
            .map(|text| crate::endpoint::parse(text).map(|address| address.to_string()).unwrap_or_default())
            .eq(given.iter().cloned());
    let endpoints = if is_known {
        String::new()
    } else {
        arguments.endpoints.iter().map(|address| format!(" --endpoints {}", crate::endpoint::show(*address))).collect()
    };
    format!("{}{endpoints}", configuration.option())
}
