//! Clients of the control socket that stay.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use polis_control::{NodeState, Request, SOCKET_DIRECTORY, SOCKET_NAME};
use polis_testkit::host::PATIENCE;

use crate::Place;

/// More than a node serves at a time.
const MANY: usize = 100;

#[test]
fn many_that_follow_the_status_leave_room_for_one_that_asks() {
    let place = Place::new();
    let mut node = place.host.start(&place.parameters);
    node.wait_state(NodeState::Running);
    let socket = place.root().join(SOCKET_DIRECTORY).join(SOCKET_NAME);
    let request = Request::Status { follow: true }.to_line().unwrap();
    let followers = (0..MANY).map(|_| {
        let mut client = BufReader::new(UnixStream::connect(&socket).unwrap());
        client.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        client.get_mut().write_all(&request).unwrap();
        let mut status = String::new();
        client.read_line(&mut status).unwrap();
        assert!(status.contains(r#""state":"Running""#), "{status}");
        client
    });
    let followers: Vec<_> = followers.collect();
    let root = place.root();
    let root = root.to_str().unwrap();
    for line in
        [["node", "status", "--root", root].as_slice(), &["node", "status", "--wait", "Running", "--root", root]]
    {
        let asked = place.host.polis(line.iter().chain(&["--timeout", "20s"]));
        assert!(asked.status.success(), "{line:?}: {}", String::from_utf8_lossy(&asked.stderr));
    }
    assert!(node.stop().success());
    for mut client in followers {
        client.read_to_end(&mut Vec::new()).unwrap();
    }
}

#[test]
fn many_that_say_nothing_leave_room_for_one_that_asks() {
    let place = Place::new();
    let mut node = place.host.start(&place.parameters);
    node.wait_state(NodeState::Running);
    let socket = place.root().join(SOCKET_DIRECTORY).join(SOCKET_NAME);
    let root = place.root();
    let began = Instant::now();
    let silent: Vec<UnixStream> = (0..2 * MANY)
        .map(|number| {
            let mut client = UnixStream::connect(&socket).unwrap();
            // Half of them begin with something that never ends.
            if number % 2 == 0 {
                // One that was sent away already takes nothing any more.
                let _ = client.write_all(b"{");
            }
            client
        })
        .collect();
    for _ in 0..3 {
        let asked = place.host.polis(["node", "status", "--root", root.to_str().unwrap(), "--timeout", "20s"]);
        assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    }
    // Less than the time after which the silent would have gone by themselves.
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    drop(silent);
    assert!(node.stop().success());
}
