//! [`Gate`]: what the enrolment does to the disk, and the end of that.

use std::sync::{Arc, Mutex, PoisonError};

/// The one gate through which all work of the enrolment goes to the disk. Whoever ends the membership of the node closes it: what is
/// being done is finished first, and nothing comes after. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate(Arc<Mutex<Closed>>);

type Closed = bool;

impl Gate {
    /// Does `work`, unless the gate is closed. Blocks while other work is being done.
    pub(crate) fn pass<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let closed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed { None } else { Some(work()) }
    }

    /// Closes the gate, for good. Blocks while work is being done.
    pub(crate) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn closing_waits_for_the_work_that_is_being_done_and_lets_none_follow() {
        let gate = Gate::default();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let events = Arc::new(Mutex::new(Vec::new()));
        let worker = thread::spawn({
            let (gate, events) = (gate.clone(), events.clone());
            move || {
                gate.pass(|| {
                    begun.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    events.lock().unwrap().push("worked");
                })
            }
        });
        has_begun.recv().unwrap();
        let closer = thread::spawn({
            let (gate, events) = (gate.clone(), events.clone());
            move || {
                gate.close();
                events.lock().unwrap().push("closed");
            }
        });
        go_on.send(()).unwrap();
        assert_eq!(worker.join().unwrap(), Some(()));
        closer.join().unwrap();
        assert_eq!(*events.lock().unwrap(), ["worked", "closed"]);
        assert_eq!(gate.pass(|| ()), None);
    }
}
