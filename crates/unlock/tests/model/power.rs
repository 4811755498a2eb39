//! What a number of machines can do with what is on their disks: the questions that are asked at the end of every history.

use std::collections::BTreeSet;

use polis_unlock::quorum;

use crate::machine::State;
use crate::world::World;

/// Ticks after which a node has asked each peer often enough, with the longest pause between.
const PATIENCE: usize = 24;

impl World {
    /// All machines have lost power, and these are started in one place. What runs does its work. Returns those that open.
    pub(crate) fn power_on(&self, nodes: &BTreeSet<usize>) -> BTreeSet<usize> {
        let mut world = self.clone();
        for machine in world.machines.values_mut() {
            machine.side = false;
            if nodes.contains(&machine.node) {
                machine.start();
            }
        }
        let open = |world: &Self| -> BTreeSet<usize> {
            nodes
                .iter()
                .copied()
                .filter(|node| world.machines.get(node).is_some_and(|machine| machine.is_open()))
                .collect()
        };
        for _ in 0..PATIENCE {
            for node in nodes {
                if matches!(world.machines.get(node).map(|machine| &machine.state), Some(State::Locked(_))) {
                    world.collect(*node);
                }
                // Among others the drill after a start, which is a contact with every peer.
                world.work(*node);
            }
            if open(&world) == *nodes {
                break;
            }
        }
        open(&world)
    }

    /// Whether every machine of this quorum has done what it was told before the power failed.
    fn is_excused(&self, machines: &BTreeSet<usize>) -> bool {
        machines.iter().any(|node| self.excused.contains(node))
    }

    /// Everything that must hold, whatever has happened. `choice` picks the machines that are tried.
    pub(crate) fn check(&self, choice: u64) -> Result<(), String> {
        self.check_slots()?;
        self.check_quorum(choice)?;
        self.check_all()?;
        self.check_thief(choice)?;
        self.check_removed()
    }

    /// Some key that is kept somewhere opens the data of every node.
    fn check_slots(&self) -> Result<(), String> {
        for (node, machine) in &self.machines {
            let file = machine.file();
            let split = file.iter().flat_map(|file| file.splits()).map(|split| split.check_value);
            let known = split
                .chain(machine.esp.local.iter().map(|key| key.check_value()))
                .chain(self.kept.keys.get(node).map(|key| key.check_value()));
            if !known.collect::<Vec<_>>().iter().any(|value| machine.slots.contains(value)) {
                return Err(format!("no key opens the data of {node} any more"));
            }
        }
        Ok(())
    }

    /// As soon as a quorum is up, every member of it opens.
    fn check_quorum(&self, choice: u64) -> Result<(), String> {
        let voters: Vec<usize> = self.kept.voters.iter().copied().collect();
        let mut chosen: BTreeSet<usize> = voters.iter().copied().filter(|node| choice >> node & 1 == 1).collect();
        let others = voters.iter().copied().filter(|node| choice >> node & 1 == 0);
        let missing = quorum(voters.len()).saturating_sub(chosen.len());
        chosen.extend(others.take(missing));
        while chosen.len() > quorum(voters.len()) {
            chosen.pop_last();
        }
        let opened = self.power_on(&chosen);
        if opened == chosen || self.is_excused(&chosen) {
            Ok(())
        } else {
            Err(format!("{chosen:?} are a quorum of {voters:?}, and only {opened:?} open"))
        }
    }

    /// Once all are up, all open; only who was put back to an old state may miss what it needs while others are late as well.
    fn check_all(&self) -> Result<(), String> {
        let late = self.excused.intersection(&self.kept.voters).filter(|node| Some(**node) != self.put_back).count();
        if self.put_back.is_some_and(|node| self.kept.voters.contains(&node))
            && (late > 0 || self.kept.voters.len() < 3)
        {
            return Ok(());
        }
        let opened = self.power_on(&self.kept.voters);
        if opened == self.kept.voters {
            Ok(())
        } else {
            Err(format!("of {:?} only {opened:?} open, though all are up", self.kept.voters))
        }
    }

    /// Fewer machines than are needed open nothing: with the oldest copy of the ESP of each, and, once all have settled, fewer than a
    /// quorum with what they have now.
    fn check_thief(&self, choice: u64) -> Result<(), String> {
        let choice = choice.rotate_left(17);
        let nodes: BTreeSet<usize> = self.machines.keys().copied().filter(|node| choice >> node & 1 == 1).collect();
        let mut world = self.clone();
        for node in &nodes {
            let machine = world.machines.get_mut(node).expect("it is there");
            if let Some(oldest) = machine.copies.first() {
                machine.esp = oldest.clone();
            }
        }
        let needed = |node: &usize| {
            let machine = &world.machines[node];
            let file = machine.file().map(|file| file.splits().map(|split| split.scheme.shares_needed()).min());
            if machine.esp.local.is_empty() { file.flatten() } else { Some(0) }
        };
        // Those who never had a file are of no use, but they hold shares.
        let least = nodes.iter().filter_map(needed).min().unwrap_or(u8::MAX);
        if nodes.len() <= usize::from(least) {
            let opened = world.power_on(&nodes);
            if !opened.is_empty() {
                return Err(format!(
                    "{opened:?} open by {nodes:?} alone, with the oldest copies, which need {least} others"
                ));
            }
        }
        self.check_thief_of_the_settled(choice)
    }

    fn check_thief_of_the_settled(&self, choice: u64) -> Result<(), String> {
        let voters = &self.kept.voters;
        let keeps_copies = voters.len() == 1 || (voters.len() == 2 && !self.two_confirmed);
        if !self.rests || keeps_copies {
            return Ok(());
        }
        let mut nodes: BTreeSet<usize> = voters.iter().copied().filter(|node| choice >> node & 1 == 1).collect();
        while nodes.len() >= quorum(voters.len()) {
            nodes.pop_first();
        }
        let opened = self.power_on(&nodes);
        if opened.is_empty() {
            Ok(())
        } else {
            Err(format!("{opened:?} open by {nodes:?} alone, fewer than a quorum of {voters:?}"))
        }
    }

    /// A removed node opens no more once its removal is called finished, whoever of the others is there with it.
    fn check_removed(&self) -> Result<(), String> {
        for removal in self.kept.removals.iter().filter(|removal| removal.is_finished) {
            let lacks = |node: &usize| {
                let machine = &self.machines[node];
                machine.list_epoch() < Some(removal.epoch)
            };
            // Somebody has put back what knew of the removal; and who had a copy of its own key keeps it.
            let is_undone = self.put_back.is_some_and(|node| lacks(&node) || node == removal.node);
            if is_undone || removal.needed == 0 {
                continue;
            }
            // Only those are there who have not heard of it: the others would only tell them.
            let nodes: BTreeSet<usize> = self.machines.keys().copied().filter(lacks).collect();
            let mut world = self.clone();
            world.kept.voters = self.machines.keys().copied().chain(100..200).collect();
            if world.power_on(&nodes).contains(&removal.node) {
                return Err(format!("{} was removed in {}, and opens with {nodes:?}", removal.node, removal.epoch));
            }
        }
        Ok(())
    }
}
