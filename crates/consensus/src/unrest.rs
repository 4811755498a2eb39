//! Whether a member loses its leader again and again: the timing is faster than processors, disks or network keep up with. Pure.
//!
//! Round trips and syncs do not show it. A machine whose processor is busy answers a request for a connection at once, and lets the
//! leader's next heartbeat wait for a quarter of a second.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Losses of a leader within [`WINDOW`] that are no coincidence. A node that dies costs one, a change of pace of five members some three.
const LOSSES: usize = 5;

/// How long a loss counts.
const WINDOW: Duration = Duration::from_secs(120);

/// What a member has seen of its leaders.
#[derive(Debug, Default)]
pub(crate) struct Unrest {
    /// Process id of etcd, and the leader that it knew.
    known: Option<(u32, u64)>,
    losses: VecDeque<Instant>,
}

impl Unrest {
    /// Takes what is known now: the process id of etcd while it runs, and the leader if there is one. Gives whether that makes too many
    /// losses; counting begins anew then.
    pub(crate) fn observe(&mut self, now: Instant, process_id: Option<u32>, leader: Option<u64>) -> bool {
        let current = process_id.zip(leader);
        let before = std::mem::replace(&mut self.known, current);
        // An etcd that was started anew has lost nothing.
        let is_loss = before.is_some_and(|(process, leader)| {
            process_id == Some(process) && current.is_none_or(|(_, current)| current != leader)
        });
        if is_loss {
            self.losses.push_back(now);
        }
        self.losses.retain(|loss| now.duration_since(*loss) < WINDOW);
        let too_many = self.losses.len() >= LOSSES;
        if too_many {
            self.losses.clear();
        }
        too_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds `(second, process id, leader)` and gives the seconds at which it was too much.
    fn too_much(seen: &[(u64, Option<u32>, Option<u64>)]) -> Vec<u64> {
        let (start, mut unrest) = (Instant::now(), Unrest::default());
        let mut observe =
            |&(second, process, leader)| unrest.observe(start + Duration::from_secs(second), process, leader);
        seen.iter().filter(|seen| observe(seen)).map(|(second, ..)| *second).collect()
    }

    #[test]
    fn five_losses_within_two_minutes_are_too_many() {
        let flapping: Vec<_> =
            (0..20).map(|second| (second, Some(7), (second % 2 == 0).then_some(second % 3))).collect();
        // Losses at 1, 3, 5, 7 and 9, and then again from the beginning.
        assert_eq!(too_much(&flapping), [9, 19]);
        let another_each_time: Vec<_> = (0..6).map(|second| (second, Some(7), Some(second))).collect();
        assert_eq!(too_much(&another_each_time), [5]);
        let slowly: Vec<_> = (0..100).map(|time| (time * 20, Some(7), (time % 2 == 0).then_some(1))).collect();
        assert_eq!(too_much(&slowly), [0; 0]);
    }

    #[test]
    fn what_a_member_does_itself_is_no_loss() {
        let restarts: Vec<_> = (0..60)
            .map(|second| match second % 3 {
                0 => (second, Some(second as u32), Some(1)),
                1 => (second, None, None),
                _ => (second, Some(second as u32 + 1), None),
            })
            .collect();
        assert_eq!(too_much(&restarts), [0; 0]);
        let calm: Vec<_> = (0..60).map(|second| (second, Some(7), Some(1))).collect();
        assert_eq!(too_much(&calm), [0; 0]);
    }
}
