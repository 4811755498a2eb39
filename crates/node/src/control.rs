//! The answering end of the control socket.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use polis_control::{PROTOCOL_VERSION, Request, Status, bind};
use polis_supervisor::{Context, RunnableResult};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};

/// Most clients at a time. They are people and scripts on this machine; more than a few is a mistake that must not cost the
/// node its file descriptors.
const MAX_CLIENTS: usize = 32;

/// Most clients at a time that are told of every change. They stay for long, and must leave room for those that only ask.
const MAX_FOLLOWERS: usize = MAX_CLIENTS / 2;

/// How long a client may take to say what it wants, and to take what it is told.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);

/// Longest request, in bytes: a line of JSON with a number and a flag.
const MAX_REQUEST_LENGTH: u64 = 4096;

/// Answers whoever connects to the socket below `root`: a runnable.
pub(crate) async fn serve(context: Context, root: PathBuf, status: watch::Receiver<Status>) -> RunnableResult {
    let listener = bind(&root)?;
    let slots = Arc::new(Semaphore::new(MAX_CLIENTS));
    let followers = Arc::new(Semaphore::new(MAX_FOLLOWERS));
    context.healthy();
    loop {
        let slot = context.unless_cancelled(slots.clone().acquire_owned()).await??;
        let (stream, _) = context.unless_cancelled(listener.accept()).await??;
        let (status, followers) = (status.clone(), followers.clone());
        context.spawn(async move {
            // A client that goes away or speaks nonsense is its own business.
            if let Err(error) = answer(stream, status, &followers).await {
                tracing::debug!(%error, "a client of the control socket was not served to its end");
            }
            drop(slot);
            Ok(())
        });
    }
}

async fn answer(stream: UnixStream, mut status: watch::Receiver<Status>, followers: &Semaphore) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut limited = (&mut stream).take(MAX_REQUEST_LENGTH);
    tokio::time::timeout(CLIENT_PATIENCE, limited.read_until(b'\n', &mut line)).await??;
    let request: Request = serde_json::from_slice(&line)?;
    if request.version != PROTOCOL_VERSION {
        let refusal = serde_json::json!({ "error": format!("this node speaks version {PROTOCOL_VERSION}") });
        return send(&mut stream, &refusal).await;
    }
    // One follower too many is told how things are, and asks again when it finds its connection closed.
    let follows = if request.follow { followers.try_acquire().ok() } else { None };
    loop {
        let now = status.borrow_and_update().clone();
        send(&mut stream, &now).await?;
        if follows.is_none() {
            return Ok(());
        }
        // A client that hangs up while nothing changes is noticed here, not at the next change.
        let mut rest = [0];
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return Ok(()) },
            _ = stream.read(&mut rest) => return Ok(()),
        }
    }
}

async fn send(stream: &mut BufReader<UnixStream>, value: &impl serde::Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    tokio::time::timeout(CLIENT_PATIENCE, stream.get_mut().write_all(&line)).await?
}
