//! What the service manager of the machine is told (sd_notify(3)): that the node runs, what it is doing, that it is alive, and
//! that it ends.
//!
//! Without a service manager, or with one that does not ask, nothing is sent and nothing runs.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use polis_control::{NodeState, Status};
use polis_supervisor::{Context, RunnableResult};
use tokio::sync::watch;

/// Where the service manager listens, and what it wants to hear. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager {
    socket: Option<Arc<UnixDatagram>>,
    /// How long it waits for a sign of life before it kills this process.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// The one that started this process, if it wants to be told.
    ///
    /// # Errors
    ///
    /// When one wants to, and cannot be reached.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        Self::from_variables(|name| std::env::var_os(name), std::process::id())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<OsString>, process_id: u32) -> io::Result<Self> {
        let Some(path) = variable("NOTIFY_SOCKET").filter(|path| !path.is_empty()) else { return Ok(Self::default()) };
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        // A service manager that does not read must not stop a node.
        socket.set_nonblocking(true)?;
        let number = |name| variable(name).and_then(|value| value.to_str()?.parse::<u64>().ok());
        // The variable is inherited; a process that starts nodes may be watched itself.
        let is_for_us = number("WATCHDOG_PID").is_none_or(|watched| watched == u64::from(process_id));
        let watchdog = number("WATCHDOG_USEC").filter(|time| is_for_us && *time > 0).map(Duration::from_micros);
        Ok(Self { socket: Some(Arc::new(socket)), watchdog })
    }

    /// The node ends and stays so.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=Stopping");
    }

    /// The node ends, and starts again in the same process.
    pub(crate) fn restarting(&self) {
        self.tell("STATUS=Restarting");
    }

    /// Tells it how the node is, and that it is alive: a runnable.
    ///
    /// A sign of life comes from the same threads that do the work of the node, after a look at the tree of runnables: when
    /// none of them gets on any more, or the supervisor holds its lock for ever, there is none.
    pub(crate) async fn keep_told(self, context: Context, mut status: watch::Receiver<Status>) -> RunnableResult {
        context.healthy();
        if self.socket.is_none() {
            return Err(context.cancelled().await.into());
        }
        // systemd asks for one in half of the time; a third leaves room for a machine that is busy.
        let mut alive = self.watchdog.map(|time| tokio::time::interval(time / 3));
        let observer = context.observer();
        let (mut ready, mut told) = (false, None);
        loop {
            {
                let now = status.borrow_and_update();
                let text = describe(&now);
                if now.state == NodeState::Running && !ready {
                    ready = true;
                    self.tell(&format!("READY=1\nSTATUS={text}"));
                } else if told.as_ref() != Some(&text) {
                    self.tell(&format!("STATUS={text}"));
                }
                told = Some(text);
            }
            tokio::select! {
                cancelled = context.cancelled() => return Err(cancelled.into()),
                changed = status.changed() => changed?,
                () = tick(&mut alive) => {
                    if !observer.dump().is_empty() {
                        self.tell("WATCHDOG=1");
                    }
                }
            }
        }
    }

    fn tell(&self, text: &str) {
        if let Some(socket) = &self.socket {
            // It is lost when the service manager does not read or is gone; nothing depends on it.
            let _ = socket.send(text.as_bytes());
        }
    }
}

async fn tick(interval: &mut Option<tokio::time::Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// One line for `systemctl status`.
fn describe(status: &Status) -> String {
    let what = match status.state {
        NodeState::New => "decides what to do",
        NodeState::CreatingCluster => "creates a cluster",
        NodeState::Registering => {
            "waits for its cluster to take it in; an operator approves it with `polis node approve`"
        }
        NodeState::Joining => "comes back to its cluster",
        NodeState::Running => "runs",
        NodeState::Failed => "has failed",
    };
    let mut text = format!("{}: {what}", status.state);
    match status.conditions.len() {
        0 => {}
        1 => text.push_str("; 1 condition, see `polis node status`"),
        count => text.push_str(&format!("; {count} conditions, see `polis node status`")),
    }
    text
}

#[cfg(test)]
mod tests {
    use polis_control::EnrolmentPhase;
    use polis_supervisor::State;
    use polis_supervisor::testing::Harness;

    use super::*;

    fn status(state: NodeState) -> Status {
        Status {
            state,
            reason: None,
            node_id: None,
            cluster_id: None,
            phase: EnrolmentPhase::None,
            address: None,
            roles: vec![],
            cold_start: None,
            contact: None,
            consensus: None,
            storage: None,
            lock: None,
            snapshots: None,
            conditions: vec![],
            running: true,
        }
    }

    fn variables<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |wanted| pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.into())
    }

    #[tokio::test]
    async fn a_service_manager_hears_when_the_node_runs_and_that_it_lives() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let listener = tokio::net::UnixDatagram::bind(&path).unwrap();
        let pairs = [("NOTIFY_SOCKET", path.to_str().unwrap()), ("WATCHDOG_USEC", "30000")];
        let manager = ServiceManager::from_variables(variables(&pairs), 1).unwrap();
        let sender = watch::Sender::new(status(NodeState::Registering));
        let harness = {
            let (manager, receiver) = (manager.clone(), sender.subscribe());
            Harness::start(move |context: Context| manager.clone().keep_told(context, receiver.clone()))
        };
        let next = async || {
            let mut buffer = [0; 1024];
            let length =
                tokio::time::timeout(Duration::from_secs(20), listener.recv(&mut buffer)).await.unwrap().unwrap();
            String::from_utf8(buffer[..length].to_vec()).unwrap()
        };
        let told = next().await;
        assert!(told.starts_with("STATUS=Registering: ") && !told.contains("READY"), "{told}");
        for _ in 0..3 {
            assert_eq!(next().await, "WATCHDOG=1", "it lives, though it is not ready");
        }
        sender.send_replace(status(NodeState::Running));
        let ready = loop {
            let told = next().await;
            if told != "WATCHDOG=1" {
                break told;
            }
        };
        assert_eq!(ready, "READY=1\nSTATUS=Running: runs");
        harness.wait_for("root", State::Healthy, Duration::from_secs(5)).await;
        harness.finish().await;
        manager.stopping();
        let last = loop {
            let told = next().await;
            if told != "WATCHDOG=1" {
                break told;
            }
        };
        assert_eq!(last, "STOPPING=1\nSTATUS=Stopping");
    }

    #[test]
    fn what_the_variables_ask_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let _listener = UnixDatagram::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        let of = |pairs: &[(&str, &str)]| ServiceManager::from_variables(variables(pairs), 7).unwrap();
        assert!(of(&[]).socket.is_none());
        assert!(of(&[("NOTIFY_SOCKET", "")]).socket.is_none());
        let asked = of(&[("NOTIFY_SOCKET", path)]);
        assert_eq!((asked.socket.is_some(), asked.watchdog), (true, None));
        let table = [
            (None, "2000000", Some(Duration::from_secs(2))),
            (Some("7"), "2000000", Some(Duration::from_secs(2))),
            (Some("8"), "2000000", None),
            (None, "0", None),
            (None, "soon", None),
        ];
        for (process, time, expect) in table {
            let mut pairs = vec![("NOTIFY_SOCKET", path), ("WATCHDOG_USEC", time)];
            pairs.extend(process.map(|process| ("WATCHDOG_PID", process)));
            assert_eq!(of(&pairs).watchdog, expect, "{pairs:?}");
        }
        assert!(ServiceManager::from_variables(variables(&[("NOTIFY_SOCKET", "/nowhere/at/all")]), 7).is_err());
    }
}
