//! Whether what clients saw of a register could have been seen one operation after the other.
//!
//! Every write writes a value of its own. Then each read names its write, and the question has an exact answer without a search
//! (Gibbons and Korach, "Testing shared memories", 1997): a write and its reads form a cluster, of which either all operations
//! overlap, or there is a span, its *zone*, in which the register must have had this value. A history is linearizable when no
//! value was read before it was asked to be written, no two such zones overlap, and no cluster whose operations all overlap lies
//! within somebody else's zone.

use std::collections::BTreeMap;
use std::time::Duration;

/// What was done to a register, and when, measured from a common beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// When it was asked for.
    pub invoked: Duration,
    /// When it was answered; absent when it was not, and may have happened at any time since, or never.
    pub answered: Option<Duration>,
    /// What was done.
    pub action: Action,
}

/// What is done to a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// A value that nobody else writes.
    Write(u64),
    /// What was read; absent before the first write.
    Read(Option<u64>),
}

/// A history that no register has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A value was read that nobody writes.
    Unwritten(u64),
    /// A value was read before it was asked to be written.
    ReadBeforeWrite(Option<u64>),
    /// Two values were both there at the same time: each was seen before and after the other was.
    Overlap(Option<u64>, Option<u64>),
    /// The second value was written and seen while the first one was there.
    Within(Option<u64>, Option<u64>),
}

/// A write and its reads.
struct Cluster {
    value: Option<u64>,
    write_invoked: Duration,
    first_answer: Duration,
    last_invocation: Duration,
    first_read_answer: Duration,
}

/// Checks the history of one register, which nobody has written before.
///
/// # Errors
///
/// The first violation that is found.
///
/// # Panics
///
/// When two writes have the same value: then this is no test of anything.
pub fn check(history: &[Operation]) -> Result<(), Violation> {
    // The state before the first write counts as one that was written before all time.
    let new = |value, invoked, answered: Option<Duration>| Cluster {
        value,
        write_invoked: invoked,
        first_answer: answered.unwrap_or(Duration::MAX),
        last_invocation: invoked,
        first_read_answer: Duration::MAX,
    };
    let mut clusters = BTreeMap::from([(None, new(None, Duration::ZERO, Some(Duration::ZERO)))]);
    for operation in history {
        if let Action::Write(value) = operation.action {
            let cluster = new(Some(value), operation.invoked, operation.answered);
            assert!(clusters.insert(Some(value), cluster).is_none(), "{value} was written twice");
        }
    }
    let mut was_read = BTreeMap::<Option<u64>, bool>::new();
    for operation in history {
        // A read without an answer has seen nothing.
        let (Action::Read(value), Some(answered)) = (&operation.action, operation.answered) else { continue };
        let Some(cluster) = clusters.get_mut(value) else { return Err(Violation::Unwritten(value.unwrap_or(0))) };
        cluster.first_answer = cluster.first_answer.min(answered);
        cluster.last_invocation = cluster.last_invocation.max(operation.invoked);
        cluster.first_read_answer = cluster.first_read_answer.min(answered);
        was_read.insert(*value, true);
    }
    // A write of which nobody knows whether it happened, and that nobody has seen, may never have happened.
    clusters.retain(|value, cluster| cluster.first_answer != Duration::MAX || was_read.contains_key(value));
    let clusters: Vec<Cluster> = clusters.into_values().collect();
    for cluster in &clusters {
        if cluster.first_read_answer < cluster.write_invoked {
            return Err(Violation::ReadBeforeWrite(cluster.value));
        }
    }
    for (number, one) in clusters.iter().enumerate() {
        for other in &clusters[number + 1..] {
            match (one.zone(), other.zone()) {
                ((true, a, b), (true, c, d)) => {
                    if a < d && c < b {
                        return Err(Violation::Overlap(one.value, other.value));
                    }
                }
                ((true, a, b), (false, c, d)) => {
                    if a < c && d < b {
                        return Err(Violation::Within(one.value, other.value));
                    }
                }
                ((false, c, d), (true, a, b)) => {
                    if a < c && d < b {
                        return Err(Violation::Within(other.value, one.value));
                    }
                }
                ((false, ..), (false, ..)) => {}
            }
        }
    }
    Ok(())
}

impl Cluster {
    /// Whether the value must have been there in a span, with that span; or else the span that all its operations share.
    fn zone(&self) -> (bool, Duration, Duration) {
        let (finish, start) = (self.first_answer, self.last_invocation);
        if finish < start { (true, finish, start) } else { (false, start, finish) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seed::Random;

    fn at(time: u64) -> Duration {
        Duration::from_millis(time)
    }

    fn write(value: u64, invoked: u64, answered: Option<u64>) -> Operation {
        Operation { invoked: at(invoked), answered: answered.map(at), action: Action::Write(value) }
    }

    fn read(value: Option<u64>, invoked: u64, answered: u64) -> Operation {
        Operation { invoked: at(invoked), answered: Some(at(answered)), action: Action::Read(value) }
    }

    #[test]
    fn planted_violations_are_found() {
        let table = [
            // A read that is stale: the second write was acknowledged before it began.
            (vec![write(1, 1, Some(2)), write(2, 3, Some(4)), read(Some(1), 5, 6)], false),
            // An acknowledged write that is lost.
            (vec![write(1, 1, Some(2)), read(None, 3, 4)], false),
            // A value that comes back.
            (
                vec![
                    write(1, 1, Some(20)),
                    write(2, 1, Some(20)),
                    read(Some(1), 2, 3),
                    read(Some(2), 4, 5),
                    read(Some(1), 6, 7),
                ],
                false,
            ),
            (vec![read(Some(1), 1, 2), write(1, 3, Some(4))], false),
            (vec![read(Some(1), 1, 2)], false),
            // Unknown outcomes: seen late, or never.
            (vec![write(1, 1, None), read(None, 2, 3), read(Some(1), 9, 10)], true),
            (vec![write(1, 1, None), write(2, 2, Some(3)), read(Some(2), 8, 9)], true),
            // Seen, gone, and seen again.
            (vec![write(1, 1, None), read(Some(1), 2, 3), read(None, 4, 5)], false),
            // Writes at the same time come in any order.
            (vec![write(1, 1, Some(5)), write(2, 1, Some(5)), read(Some(1), 6, 7)], true),
        ];
        for (history, expect) in table {
            let found = check(&history);
            assert_eq!(found.is_ok(), expect, "{history:?}: {found:?}");
            assert_eq!(found.is_ok(), is_linearizable(&history), "{history:?}");
        }
    }

    /// Tries every order. The measure of the other.
    fn is_linearizable(history: &[Operation]) -> bool {
        fn place(left: &[&Operation], value: Option<u64>) -> bool {
            // What is not known to have happened need not happen.
            if left.iter().all(|operation| operation.answered.is_none()) {
                return true;
            }
            let first_answer = left.iter().filter_map(|operation| operation.answered).min();
            (0..left.len()).any(|index| {
                let next = left[index];
                if first_answer.is_some_and(|answer| answer < next.invoked) {
                    return false;
                }
                let value = match &next.action {
                    Action::Write(written) => Some(*written),
                    Action::Read(seen) if *seen == value => value,
                    Action::Read(_) => return false,
                };
                let rest: Vec<&Operation> =
                    left.iter().enumerate().filter(|(other, _)| *other != index).map(|(_, rest)| *rest).collect();
                place(&rest, value)
            })
        }
        place(&history.iter().collect::<Vec<_>>(), None)
    }

    #[test]
    fn it_says_what_a_trial_of_every_order_says() {
        let mut random = Random::for_this_run();
        let mut counts = [0; 2];
        for _ in 0..4000 {
            let mut times: Vec<u64> = (1..=40).collect();
            let mut written = 0;
            let history: Vec<Operation> = (0..2 + random.below(5))
                .map(|_| {
                    let mut time = || times.swap_remove(usize::try_from(random.below(times.len() as u64)).unwrap());
                    let (one, other) = (time(), time());
                    let (invoked, answered) = (one.min(other), one.max(other));
                    if random.below(2) == 0 {
                        written += 1;
                        write(written, invoked, (random.below(4) > 0).then_some(answered))
                    } else {
                        let seen = random.below(written + 1);
                        read((seen > 0).then_some(seen), invoked, answered)
                    }
                })
                .collect();
            let expect = is_linearizable(&history);
            assert_eq!(check(&history).is_ok(), expect, "{history:?}");
            counts[usize::from(expect)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 500), "{counts:?}");
    }
}
