//! An etcd that is not there, is not one that may hold a cluster, or does not do its work.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use polis_control::NodeState;
use polis_testkit::checks::OnDisk;
use polis_testkit::host::PATIENCE;
use polis_testkit::processes;
use polis_testkit::refusal::{Says, has_condition, refused};
use polis_testkit::scripted::ScriptedEtcd;
use rustix::process::{Pid, Signal, kill_process};

use crate::{Place, kill_etcd};

#[test]
fn missing() {
    let place = Place::enrolled();
    let nowhere = place.host.directory().join("nowhere/etcd");
    let mut command = place.host.command_with_etcd(&nowhere);
    command.arg("--parameters").arg(&place.parameters);
    let says = Says {
        what: "there is no etcd that it can run",
        place: &nowhere,
        why: "etcd is missing: there is no file",
        next: "then pass --etcd target/tools/etcd/usr/bin/etcd. Or install the Debian package etcd-server",
    };
    refused(&place.host, command, 2, says);
    // Not named, and not in PATH.
    let mut command = std::process::Command::new(&place.host.binary);
    command.args(["node", "run", "--root"]).arg(place.root()).arg("--parameters").arg(&place.parameters);
    command.env("PATH", "/nonexistent:/neither");
    let says = Says {
        place: Path::new("PATH is /nonexistent:/neither"),
        why: "no directory of PATH has a program etcd",
        ..says
    };
    refused(&place.host, command, 2, says);
}

#[test]
fn of_a_wrong_version() {
    let place = Place::enrolled();
    let etcd = ScriptedEtcd::new(place.host.directory(), "exit 1");
    for (version, why) in [
        ("3.5.1", "is etcd 3.5.1, which is not accepted: this version can lose committed data when it is killed"),
        ("3.4.21", "is etcd 3.4.21, which is not accepted: this version can lose committed data when it is killed"),
        ("3.3.25", "is etcd 3.3.25, which is not accepted: this version lacks what Polis relies on"),
        ("4.0.0", "is etcd 4.0.0, which is not accepted: this version is newer than any that Polis knows"),
    ] {
        etcd.tell_version(version);
        let says = Says {
            what: "there is no etcd that it can run",
            place: etcd.path(),
            why,
            next: "Use 3.4.22 or later of 3.4",
        };
        refused(&place.host, place.command_with(&etcd), 1, says);
    }
    etcd.tell_version("good");
    let says = Says {
        what: "there is no etcd that it can run",
        place: etcd.path(),
        why: "it printed no line \"etcd Version:\" with a version, but \"etcd Version: good",
        next: "name another one with --etcd PATH",
    };
    refused(&place.host, place.command_with(&etcd), 1, says);
}

#[test]
fn silent_about_its_version() {
    let place = Place::enrolled();
    let etcd = ScriptedEtcd::new(place.host.directory(), "exit 1");
    etcd.tell_nothing();
    let says = Says {
        what: "there is no etcd that it can run",
        place: etcd.path(),
        why: "it has not printed its version within 10s",
        next: "name another one with --etcd PATH",
    };
    refused(&place.host, place.command_with(&etcd), 1, says);
}

#[test]
fn dying_at_start() {
    let place = Place::new();
    let script = "echo '{\"level\":\"fatal\",\"msg\":\"the moon is full\"}' >&2; exit 3";
    let etcd = ScriptedEtcd::new(place.host.directory(), script);
    let mut node = place.host.spawn(place.command_with(&etcd));
    let status = node.wait_condition("consensus-etcd-exiting");
    let says = Says {
        what: "etcd ends before it is ready",
        place: Path::new("etcd"),
        why: "the moon is full",
        next: "The log of etcd says more; the start is tried again by itself.",
    };
    let condition = has_condition(&status, "consensus-etcd-exiting", says);
    assert!(condition.message.contains("exit code 3") || condition.message.contains("exit status: 3"), "{condition:?}");
    assert_eq!(status.state, NodeState::CreatingCluster);
    let before = OnDisk { node_id: status.node_id, ..OnDisk::default() };
    assert!(before.node_id.is_some());
    etcd.behave_well();
    place.runs_well(node, &before);
}

#[test]
fn hanging_at_start() {
    let place = Place::new();
    let etcd = ScriptedEtcd::new(place.host.directory(), "exec sleep 600");
    let mut node = place.host.spawn(place.command_with(&etcd));
    let status = node.wait_condition("consensus-etcd-hanging");
    let hanging =
        processes::in_directory(&place.root()).into_iter().find(|process| process.command.starts_with("sleep "));
    let hanging = hanging.expect("the etcd that hangs is there").id;
    let named = format!("etcd (process {hanging})");
    let says = Says {
        what: "nothing can be read or written through this node",
        place: Path::new(&named),
        why: "has not answered for more than 8 s",
        next: "a killed one is started again",
    };
    has_condition(&status, "consensus-etcd-hanging", says);
    assert_eq!(status.state, NodeState::CreatingCluster);
    etcd.behave_well();
    let process = Pid::from_raw(i32::try_from(hanging).unwrap()).unwrap();
    kill_process(process, Signal::KILL).unwrap();
    place.runs_well(node, &OnDisk { node_id: status.node_id, ..OnDisk::default() });
}

#[test]
fn taken_away_from_a_running_node() {
    let place = Place::new();
    let etcd = ScriptedEtcd::new(place.host.directory(), "exec \"$etcd\" \"$@\"");
    let mut node = place.host.spawn(place.command_with(&etcd));
    let before = node.wait_state(NodeState::Running);
    fs::remove_file(etcd.path()).unwrap();
    kill_etcd(&place.root());
    let status = node.wait_condition("consensus-etcd-unusable");
    let says = Says {
        what: "etcd cannot be started",
        place: etcd.path(),
        why: "etcd is missing: there is no file",
        next: "the start is tried again by itself",
    };
    has_condition(&status, "consensus-etcd-unusable", says);
    etcd.behave_well();
    place.runs_well(node, &OnDisk { node_id: before.node_id, ..OnDisk::default() });
}

#[test]
fn a_node_is_stopped_in_order_while_it_still_asks_for_the_version() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let place = Place::new();
        let (etcd, asked) = (place.host.directory().join("silent"), place.host.directory().join("asked"));
        let script = format!("#!/bin/sh\n: >'{}'\nexec /bin/sleep 600\n", asked.display());
        // A program that any thread has open for writing cannot be run, so another process writes it.
        let write = ["-c", "printf %s \"$0\" >\"$1\" && chmod 700 \"$1\"", &script];
        assert!(std::process::Command::new("/bin/sh").args(write).arg(&etcd).status().unwrap().success());
        let mut command = place.host.command_with_etcd(&etcd);
        command.arg("--parameters").arg(&place.parameters);
        let mut node = place.host.spawn(command);
        let patience = Instant::now() + PATIENCE;
        while !asked.exists() {
            assert!(Instant::now() < patience, "etcd is not asked: {}", node.log());
            std::thread::sleep(Duration::from_millis(2));
        }
        let id = i32::try_from(node.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(id, signal).unwrap();
        assert_eq!(node.wait_exit().code(), Some(0), "{}", node.log());
        assert!(!place.root().exists());
        processes::wait_until_gone(place.host.directory()).unwrap();
    }
}
