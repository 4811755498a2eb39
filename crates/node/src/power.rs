//! Somebody wants the node to end or to start anew: from whoever is told so to the loop that ends the node.

use tokio::sync::watch;

/// How the node is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// It ends, and is not started again by itself.
    Stop,
    /// The same program starts again in its place; a machine starts again.
    Restart,
    /// A machine starts again and stops in the menu of its firmware.
    FirmwareMenu,
    /// A machine goes over to the kernel that was loaded for it.
    LoadedKernel,
}

/// Where an end is asked for. Clones are the same. The first wish counts.
#[derive(Clone, Debug)]
pub(crate) struct Power(watch::Sender<Option<End>>);

impl Default for Power {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Power {
    /// Asks for an end.
    pub(crate) fn request(&self, end: End) {
        self.0.send_if_modified(|wanted| {
            let is_first = wanted.is_none();
            if is_first {
                *wanted = Some(end);
            }
            is_first
        });
    }

    /// Waits until an end is asked for.
    pub(crate) async fn requested(&self) -> End {
        let mut wanted = self.0.subscribe();
        loop {
            if let Some(end) = *wanted.borrow_and_update() {
                return end;
            }
            // This handle holds the sender.
            if wanted.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn the_first_wish_counts() {
        let power = Power::default();
        assert_eq!(power.requested().now_or_never(), None);
        power.request(End::Restart);
        power.request(End::Stop);
        assert_eq!(power.requested().now_or_never(), Some(End::Restart));
    }
}
