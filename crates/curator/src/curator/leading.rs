//! What is done only while this node leads.

use polis_supervisor::RunnableResult;
use tokio::sync::watch;

use crate::{LeaderState, Leadership};

/// Does `work` anew for each leadership of this node. It is dropped the moment that the leadership is found to be over.
///
/// Returns when the work fails while its leadership is not known to be over. Work that is done is not repeated for the same
/// leadership.
pub(super) async fn while_leading<W: Future<Output = RunnableResult>>(
    mut leadership: watch::Receiver<Leadership>,
    mut work: impl FnMut(LeaderState) -> W,
) -> RunnableResult {
    loop {
        let leader = leadership.wait_for(|leadership| leadership.leader().is_some()).await?.leader().cloned();
        let Some(leader) = leader else { continue };
        let done = async {
            let outcome = work(leader.clone()).await;
            // What has lost its leadership ends in errors that say so, which are no failure of the work.
            if leader.is_lost() { Ok(()) } else { outcome }
        };
        tokio::select! {
            biased;
            () = leader.lost() => {}
            outcome = done => {
                outcome?;
                leader.lost().await;
            }
        }
        // The leadership may still be published, for a moment.
        leadership.wait_for(|known| known.leader().is_none_or(|known| !known.is_lost())).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use polis_identity::NodeId;
    use tokio::time::timeout;

    use super::*;
    use crate::State;
    use crate::common::Etcd;
    use crate::state::Fence;

    /// Counts those of its kind that exist.
    struct Present(Arc<AtomicU32>);

    impl Drop for Present {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn leader(state: &State, node: NodeId, revision: i64) -> LeaderState {
        LeaderState::new(state.clone(), Fence { revision }, node, 1)
    }

    #[tokio::test]
    async fn work_goes_with_its_leadership_and_comes_with_the_next() {
        let etcd = Etcd::start().await;
        let (state, node) = (etcd.state(), etcd.node_id());
        let leadership = watch::Sender::new(Leadership::Unsettled);
        let (present, starts) = (Arc::new(AtomicU32::new(0)), watch::Sender::new(Vec::new()));
        let mut started = starts.subscribe();
        let running = Arc::clone(&present);
        let work = while_leading(leadership.subscribe(), |leader| {
            running.fetch_add(1, Ordering::SeqCst);
            let here = Present(Arc::clone(&running));
            starts.send_modify(|all: &mut Vec<i64>| all.push(leader.fence().revision));
            async move {
                let _here = here;
                // One that ends in order is not begun again.
                if leader.fence().revision == 3 { Ok(()) } else { std::future::pending().await }
            }
        });
        let test = async {
            assert_eq!(present.load(Ordering::SeqCst), 0, "nobody leads yet");
            let first = leader(&state, node, 1);
            leadership.send_replace(Leadership::Leader(first.clone()));
            started.wait_for(|all| *all == [1]).await.unwrap();
            assert_eq!(present.load(Ordering::SeqCst), 1);
            first.lose();
            // The work is dropped although the leadership is still published.
            while present.load(Ordering::SeqCst) > 0 {
                tokio::task::yield_now().await;
            }
            leadership.send_replace(Leadership::Follower { leader: node, address: None });
            leadership.send_replace(Leadership::Leader(leader(&state, node, 2)));
            started.wait_for(|all| *all == [1, 2]).await.unwrap();
            // From one leadership to the next without anything between.
            leadership.borrow().leader().unwrap().lose();
            leadership.send_replace(Leadership::Leader(leader(&state, node, 3)));
            started.wait_for(|all| *all == [1, 2, 3]).await.unwrap();
            leadership.borrow().leader().unwrap().lose();
            leadership.send_replace(Leadership::Leader(leader(&state, node, 4)));
            started.wait_for(|all| *all == [1, 2, 3, 4]).await.unwrap();
        };
        tokio::select! {
            outcome = work => panic!("it never ends by itself: {outcome:?}"),
            done = timeout(Duration::from_secs(20), test) => done.expect("each step takes a moment"),
        }
        etcd.stop().await;
    }

    #[tokio::test]
    async fn work_that_fails_while_it_leads_is_a_failure() {
        let etcd = Etcd::start().await;
        let leader = leader(&etcd.state(), etcd.node_id(), 1);
        let leadership = watch::Sender::new(Leadership::Leader(leader));
        let outcome = while_leading(leadership.subscribe(), |_| async { Err("broken".into()) });
        let outcome = timeout(Duration::from_secs(20), outcome).await.unwrap();
        assert_eq!(outcome.unwrap_err().to_string(), "broken");
        etcd.stop().await;
    }
}
