//! The answering end of the control socket.

mod silent;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_control::{
    Answer, MAX_LINE_LENGTH, MAX_REPORT_LENGTH, MAX_REQUEST_LENGTH, Protocol, Refusal, Request, Status, bind,
};
use polis_roleserve::RoleServe;
use polis_supervisor::{Context, RunnableResult, with_causes};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};

use crate::measures::Measures;
use crate::owner;
use crate::peers::KnownPeers;
use crate::report::report;
use silent::{Silent, SilentClient};

/// Most clients at a time. They are people and scripts on this machine; more than a few is a mistake that must not cost the
/// node its file descriptors.
const MAX_CLIENTS: usize = 32;

/// Most clients at a time that are told of every change. They stay for long, and must leave room for those that only ask.
const MAX_FOLLOWERS: usize = MAX_CLIENTS / 2;

/// How long a client may take to say what it wants, and to take what it is told. Where others need its place, one that has said
/// nothing has no such time.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// What the answers are made of.
#[derive(Clone)]
pub(crate) struct Handlers {
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) measures: Measures,
    pub(crate) peers: KnownPeers,
    pub(crate) role_serve: RoleServe,
}

/// Answers whoever connects to the socket below `root`: a runnable.
pub(crate) async fn serve(context: Context, root: PathBuf, handlers: Handlers) -> RunnableResult {
    let listener = bind(&root)?;
    let slots = Arc::new(Semaphore::new(MAX_CLIENTS));
    let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
    let silent = Silent::default();
    context.healthy();
    loop {
        let (stream, _) = context.unless_cancelled(listener.accept()).await??;
        let slot = match slots.clone().try_acquire_owned() {
            Ok(slot) => slot,
            Err(_) => {
                silent.shed();
                context.unless_cancelled(slots.clone().acquire_owned()).await??
            }
        };
        let client = Client { context: context.clone(), handlers: handlers.clone(), stream: BufReader::new(stream) };
        let (followers, silent) = (followers.clone(), silent.enter());
        context.spawn(async move {
            // A client that goes away or speaks nonsense is its own business.
            if let Err(error) = client.answer(&followers, silent).await {
                tracing::debug!(%error, "a client of the control socket was not served to its end");
            }
            drop(slot);
            Ok(())
        });
    }
}

/// One connection.
struct Client {
    context: Context,
    handlers: Handlers,
    stream: BufReader<UnixStream>,
}

impl Client {
    async fn answer(mut self, followers: &Semaphore, mut silent: SilentClient) -> std::io::Result<()> {
        let mut line = Vec::new();
        let mut limited = (&mut self.stream).take(MAX_REQUEST_LENGTH as u64);
        tokio::select! {
            biased;
            read = tokio::time::timeout(CLIENT_PATIENCE, limited.read_until(b'\n', &mut line)) => read??,
            () = silent.shed() => return Err(std::io::Error::other("it said nothing, and another one needed the place")),
        };
        drop(silent);
        let (protocol, request) = match Request::from_line(&line) {
            Ok(request) => request,
            Err(error) => return self.refuse(Refusal::new(with_causes(&error))).await,
        };
        let Handlers { measures, peers, role_serve, .. } = self.handlers.clone();
        match request {
            Request::Status { follow } => {
                // One follower too many is told how things are, and asks again when it finds its connection closed.
                let follows = if follow { followers.try_acquire().ok() } else { None };
                self.tell_status(protocol, follows.is_some()).await
            }
            Request::SetPeers { peers: wanted } => {
                let set = peers.set(&self.context, wanted).await;
                self.conclude(set, MAX_LINE_LENGTH).await
            }
            Request::Report {} => {
                let report = report(&measures).await;
                self.conclude(Ok(report), MAX_REPORT_LENGTH).await
            }
            Request::ProposeOwner { public_key } => {
                let proposed = owner::propose(&role_serve, &public_key).await;
                self.conclude(proposed, MAX_LINE_LENGTH).await
            }
        }
    }

    async fn tell_status(&mut self, protocol: Protocol, follow: bool) -> std::io::Result<()> {
        let mut status = self.handlers.status.clone();
        loop {
            status.mark_unchanged();
            // What was published does not have the last heartbeat, as nobody is told of each.
            let now = self.handlers.measures.sources.now();
            match protocol {
                Protocol::Bare => self.send(&now, MAX_LINE_LENGTH).await?,
                Protocol::Enveloped => self.send(&Answer::Answer(now), MAX_LINE_LENGTH).await?,
            }
            if !follow {
                return Ok(());
            }
            // A client that hangs up while nothing changes is noticed here, not at the next change.
            let mut rest = [0];
            tokio::select! {
                changed = status.changed() => if changed.is_err() { return Ok(()) },
                _ = self.stream.read(&mut rest) => return Ok(()),
            }
        }
    }

    async fn conclude<T: Serialize>(&mut self, result: Result<T, Refusal>, limit: usize) -> std::io::Result<()> {
        match result {
            Ok(answer) => self.send(&Answer::Answer(answer), limit).await,
            Err(refusal) => self.refuse(refusal).await,
        }
    }

    async fn refuse(&mut self, refusal: Refusal) -> std::io::Result<()> {
        self.send(&Answer::<()>::Refusal(refusal), MAX_LINE_LENGTH).await
    }

    async fn send(&mut self, value: &impl Serialize, limit: usize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(value)?;
        if line.len() >= limit {
            let refusal = Refusal::new(format!("the answer has {} bytes, and clients take {limit}", line.len()));
            line = serde_json::to_vec(&Answer::<()>::Refusal(refusal))?;
        }
        line.push(b'\n');
        tokio::time::timeout(CLIENT_PATIENCE, self.stream.get_mut().write_all(&line)).await?
    }
}
