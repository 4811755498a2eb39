//! Serving at the node's address, on one port, wherever that address is.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_condition::{Conditions, Severity};
use polis_rpc::{Limits, listen};
use polis_supervisor::{Context, RunnableResult};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

/// Pause before it is tried again to listen. Nothing tells when a port becomes free.
const LISTEN_PAUSE: Duration = Duration::from_secs(2);

/// Seats of a server that people and monitoring use, and not every node of a large cluster: it leaves file descriptors to those
/// that need them.
const SEATS: usize = 256;

/// A port of this node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Port {
    pub(crate) number: u16,
    /// Name of the condition that nobody can be served on it.
    pub(crate) condition: &'static str,
    /// What does not work then, as a sentence.
    pub(crate) consequence: &'static str,
}

/// Limits of a server that people and monitoring use.
pub(crate) const LIMITS: Limits = Limits {
    handshakes: SEATS,
    handshakes_kept: SEATS / 2,
    handshakes_per_address: SEATS / 4,
    strangers: SEATS / 4,
    strangers_per_address: SEATS / 8,
    members: SEATS,
    members_per_key: SEATS / 4,
    ..Limits::DEFAULT
}
.checked();

/// Serves at the node's address, and elsewhere as soon as that changes. Calls that are under way at the old address may end
/// there.
pub(crate) async fn serve_at<F>(
    context: &Context,
    mut address: watch::Receiver<Option<IpAddr>>,
    port: Port,
    serve: impl Fn(TcpListener) -> F,
) -> RunnableResult
where
    F: Future<Output = RunnableResult>,
{
    let result = async {
        loop {
            let here = *context.unless_cancelled(address.wait_for(Option::is_some)).await??;
            let Some(here) = here else { continue };
            let listening = context.unless_cancelled(listen_at(here, port, &mut address, context.conditions())).await?;
            let Some(listener) = listening else { continue };
            tracing::info!("serving on {}", SocketAddr::new(here, port.number));
            tokio::select! {
                result = serve(listener) => return result,
                moved = address.wait_for(|now| *now != Some(here)) => drop(moved?),
            }
        }
    }
    .await;
    context.conditions().clear(port.condition);
    result
}

/// Listens at this address as soon as that is possible; `None` when the node has another address before that.
async fn listen_at(
    here: IpAddr,
    port: Port,
    address: &mut watch::Receiver<Option<IpAddr>>,
    conditions: &Conditions,
) -> Option<TcpListener> {
    let at = SocketAddr::new(here, port.number);
    loop {
        match listen(at) {
            Ok(listener) => {
                conditions.clear(port.condition);
                return Some(listener);
            }
            Err(error) => conditions.raise(
                port.condition,
                Severity::Warning,
                format!(
                    "nobody can be served on {at}: {error}. {}; it is tried again every few seconds",
                    port.consequence
                ),
                "end the program that listens there (`ss -ltnp` names it), or give this node an address of its own",
            ),
        }
        tokio::select! {
            () = sleep(LISTEN_PAUSE) => {}
            moved = address.wait_for(|now| *now != Some(here)) => {
                drop(moved.ok()?);
                return None;
            }
        }
    }
}
