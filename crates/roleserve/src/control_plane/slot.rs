//! [`Slot`]: a place in the tree of runnables for something that comes and goes.
//!
//! A runnable cannot start children after it has begun its work, and a child cannot be taken away from it. So what comes and
//! goes has a place that is always there: one life of the place waits until something is wanted, runs it as itself, and ends
//! when that is no longer wanted, which is no death. Only when nothing is left of a life does the supervisor begin the next, which
//! is how the place knows that it is free again.

use polis_supervisor::{BeginAnew, Context, Runnable, RunnableResult};
use tokio::sync::watch;

/// A place for one `T`. Clones are the same place.
#[derive(Clone)]
pub(crate) struct Slot<T>(watch::Sender<Occupancy<T>>);

struct Occupancy<T> {
    /// What is to run, and its number.
    wanted: Option<(u64, T)>,
    /// Whether a life that runs something has begun and its end has not been seen.
    busy: bool,
    /// Numbers what is wanted, so that the same thing wanted anew is another.
    next: u64,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(watch::Sender::new(Occupancy { wanted: None, busy: false, next: 0 }))
    }
}

impl<T: Clone + Send + Sync + 'static> Slot<T> {
    /// Wants this to run instead of what was wanted before.
    pub(crate) fn want(&self, value: T) {
        self.0.send_modify(|slot| {
            slot.wanted = Some((slot.next, value));
            slot.next += 1;
        });
    }

    /// Wants nothing to run.
    pub(crate) fn clear(&self) {
        self.0.send_if_modified(|slot| slot.wanted.take().is_some());
    }

    /// Waits until nothing runs that is not wanted. It takes a runnable for that: without one, nothing runs.
    pub(crate) async fn vacated(&self) {
        let mut occupancy = self.0.subscribe();
        // This handle holds the sender.
        let _ = occupancy.wait_for(|slot| slot.wanted.is_none() && !slot.busy).await;
    }

    /// One life of the place.
    pub(crate) async fn run<R: Runnable>(&self, context: Context, runnable: impl Fn(T) -> R) -> RunnableResult {
        // The last life is over, with all that it had started.
        self.0.send_if_modified(|slot| std::mem::take(&mut slot.busy));
        let (number, value) = context.unless_cancelled(self.occupy()).await?;
        let mut occupancy = self.0.subscribe();
        let unwanted = occupancy.wait_for(|slot| slot.wanted.as_ref().is_none_or(|(wanted, _)| *wanted != number));
        tokio::select! {
            result = runnable(value).run(context.clone()) => result,
            _ = unwanted => Err(BeginAnew.into()),
        }
    }

    /// Waits for something that is wanted, and begins with it in the same step: nobody finds the place free in between.
    async fn occupy(&self) -> (u64, T) {
        let mut occupancy = self.0.subscribe();
        loop {
            let mut taken = None;
            self.0.send_if_modified(|slot| {
                taken.clone_from(&slot.wanted);
                slot.busy = taken.is_some();
                slot.busy
            });
            if let Some(taken) = taken {
                return taken;
            }
            // This handle holds the sender.
            let _ = occupancy.wait_for(|slot| slot.wanted.is_some()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use polis_supervisor::testing::Harness;
    use polis_supervisor::{BackoffSettings, Settings, runnable};
    use tokio::sync::Mutex;
    use tokio::time::timeout;

    use super::*;

    /// Patience with what takes some milliseconds.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A slot under a supervisor, whose runnables write down when they begin and when they have ended.
    struct Fixture {
        slot: Slot<u32>,
        events: watch::Sender<Vec<String>>,
        harness: Harness,
    }

    fn fixture() -> Fixture {
        let slot = Slot::default();
        let events = watch::Sender::new(Vec::new());
        let running = Arc::new(Mutex::new(()));
        let root = {
            let (slot, events) = (slot.clone(), events.clone());
            runnable(move |context: Context| {
                let (slot, events, running) = (slot.clone(), events.clone(), running.clone());
                async move {
                    context.run("slot", move |context: Context| {
                        let (slot, events, running) = (slot.clone(), events.clone(), running.clone());
                        async move {
                            slot.run(context, move |number| {
                                let (events, running) = (events.clone(), running.clone());
                                move |context: Context| occupant(context, number, events.clone(), running.clone())
                            })
                            .await
                        }
                    })?;
                    context.healthy();
                    Err(context.cancelled().await.into())
                }
            })
        };
        let backoff = BackoffSettings { initial: Duration::from_millis(5), ..BackoffSettings::default() };
        let harness = Harness::start_with(Settings { backoff, ..Settings::default() }, root);
        Fixture { slot, events, harness }
    }

    /// An occupant with a child that takes a moment to stop. Two of them at a time would be a fault.
    async fn occupant(
        context: Context,
        number: u32,
        events: watch::Sender<Vec<String>>,
        running: Arc<Mutex<()>>,
    ) -> RunnableResult {
        context.run("child", move |context: Context| {
            let (events, running) = (events.clone(), running.clone());
            async move {
                let alone = running.try_lock_owned().expect("the one before has ended");
                context.healthy();
                events.send_modify(|events| events.push(format!("begin {number}")));
                let cancelled = context.cancelled().await;
                // The moment that it takes to stop: without it a second occupant could not be caught beside it.
                tokio::time::sleep(Duration::from_millis(20)).await;
                events.send_modify(|events| events.push(format!("end {number}")));
                drop(alone);
                Err(cancelled.into())
            }
        })?;
        context.healthy();
        Err(context.cancelled().await.into())
    }

    impl Fixture {
        async fn wait_for(&self, expected: &[&str]) {
            let mut events = self.events.subscribe();
            if timeout(PATIENCE, events.wait_for(|events| events == expected)).await.is_err() {
                panic!("{:?} is not {expected:?}\n{}", *self.events.borrow(), self.harness.describe());
            }
        }
    }

    #[tokio::test]
    async fn what_is_wanted_runs_and_what_follows_waits_for_its_end() {
        let fixture = fixture();
        fixture.slot.vacated().await;
        fixture.slot.want(1);
        fixture.wait_for(&["begin 1"]).await;
        fixture.slot.want(2);
        fixture.wait_for(&["begin 1", "end 1", "begin 2"]).await;
        fixture.slot.clear();
        timeout(PATIENCE, fixture.slot.vacated()).await.unwrap();
        // It is free only when the last one has wholly ended.
        assert_eq!(*fixture.events.borrow(), ["begin 1", "end 1", "begin 2", "end 2"]);
        fixture.slot.want(3);
        fixture.wait_for(&["begin 1", "end 1", "begin 2", "end 2", "begin 3"]).await;
        let dump = fixture.harness.observer().dump();
        let slot = dump.iter().find(|report| report.distinguished_name.as_str() == "root.slot").unwrap();
        assert_eq!((slot.restarts, slot.last_error.as_deref()), (2, None), "to stop what is not wanted is no death");
        fixture.harness.finish().await;
    }

    #[tokio::test]
    async fn what_is_no_longer_wanted_before_it_began_never_runs() {
        let slot = Slot::<u32>::default();
        slot.want(1);
        slot.clear();
        timeout(PATIENCE, slot.vacated()).await.unwrap();
        slot.want(2);
        assert_eq!(timeout(PATIENCE, slot.occupy()).await.unwrap(), (1, 2));
    }
}
