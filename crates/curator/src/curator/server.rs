//! The curator's server: where the node is, on the curator's port.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use polis_condition::{Conditions, Severity};
use polis_rpc::{CURATOR_PORT, ServerSettings, listen, serve};
use polis_supervisor::{Context, RunnableResult};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;
use tonic::service::Routes;

/// Name of the condition that the curator cannot listen on its port.
const CANNOT_LISTEN: &str = "curator-cannot-listen";

/// Pause before it is tried again to listen. Nothing tells when a port becomes free.
const LISTEN_PAUSE: Duration = Duration::from_secs(2);

/// Serves at the node's address, and elsewhere as soon as that changes. Calls that are under way at the old address may end
/// there.
pub(super) async fn run(
    context: Context,
    mut address: watch::Receiver<Option<IpAddr>>,
    settings: ServerSettings,
    routes: Routes,
) -> RunnableResult {
    context.healthy();
    let result = async {
        loop {
            let here = *context.unless_cancelled(address.wait_for(Option::is_some)).await??;
            let Some(here) = here else { continue };
            let listening = context.unless_cancelled(listen_at(here, &mut address, context.conditions())).await?;
            let Some(listener) = listening else { continue };
            tracing::info!("serving on {}", SocketAddr::new(here, CURATOR_PORT));
            tokio::select! {
                result = serve(context.clone(), listener, settings.clone(), routes.clone()) => return result,
                moved = address.wait_for(|now| *now != Some(here)) => drop(moved?),
            }
        }
    }
    .await;
    context.conditions().clear(CANNOT_LISTEN);
    result
}

/// Listens at this address as soon as that is possible; `None` when the node has another address before that.
async fn listen_at(
    here: IpAddr,
    address: &mut watch::Receiver<Option<IpAddr>>,
    conditions: &Conditions,
) -> Option<TcpListener> {
    let at = SocketAddr::new(here, CURATOR_PORT);
    loop {
        match listen(at) {
            Ok(listener) => {
                conditions.clear(CANNOT_LISTEN);
                return Some(listener);
            }
            Err(error) => conditions.raise(
                CANNOT_LISTEN,
                Severity::Error,
                format!(
                    "the curator of this node cannot listen on {at}: {error}. Neither operators nor nodes reach the cluster \
                     through this node; it is tried again every few seconds"
                ),
                "End the program that listens there (`ss -ltnp` names it), or give this node an address of its own.",
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
