//! A DHCP server that does what a test tells it, with leases of seconds, which real ones do not give.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use socket2::{Domain, Protocol, Socket, Type};

use crate::outside::Outside;

/// What the server does.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// The address that it gives; none: it is silent.
    pub(crate) gives: Option<Ipv4Addr>,
    /// The address that it does not extend any more.
    pub(crate) refuses: Option<Ipv4Addr>,
    /// In seconds; 0: it does not say.
    pub(crate) lease: u32,
    /// After which time to renew, in seconds.
    pub(crate) renew: u32,
}

pub(crate) struct Server {
    pub(crate) rules: Arc<Mutex<Rules>>,
    /// Kinds of the messages that came, with the address of who sent them.
    pub(crate) heard: Arc<Mutex<Vec<(u8, Ipv4Addr)>>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts one there, on the far end of a cable, with this address of its own.
    pub(crate) fn start(outside: &Outside, interface: &str, own: Ipv4Addr, rules: Rules) -> Self {
        let rules = Arc::new(Mutex::new(rules));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let ends = Arc::new(AtomicBool::new(false));
        let (namespace, interface) = (outside.open(), format!("{interface}-far"));
        let (their_rules, their_heard, their_end) = (Arc::clone(&rules), Arc::clone(&heard), Arc::clone(&ends));
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_broadcast(true).unwrap();
            socket.bind_device(Some(interface.as_bytes())).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 67).into()).unwrap();
            let socket = UdpSocket::from(socket);
            ready.send(()).unwrap();
            while !their_end.load(Ordering::Relaxed) {
                let mut buffer = [0; 2000];
                let (length, from) = match socket.recv_from(&mut buffer) {
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => panic!("{error}"),
                };
                let request = &buffer[..length];
                let kind = option(request, 53).unwrap()[0];
                let std::net::IpAddr::V4(from) = from.ip() else { panic!("{from} is of IPv4") };
                their_heard.lock().unwrap().push((kind, from));
                if let Some(answer) = answer(request, kind, own, &their_rules.lock().unwrap()) {
                    let renewing = request[12..16] != [0; 4];
                    let client = Ipv4Addr::new(request[12], request[13], request[14], request[15]);
                    // As RFC 2131, 4.1 has it: to the address that the client uses, and else to everybody.
                    let refused = option(&answer, 53).unwrap()[0] == 6;
                    let to = if renewing && !refused { client } else { Ipv4Addr::BROADCAST };
                    socket.send_to(&answer, SocketAddrV4::new(to, 68)).unwrap();
                }
            }
        });
        is_ready.recv().unwrap();
        Self { rules, heard, ends, thread: Some(thread) }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.rules.lock().unwrap());
    }

    pub(crate) fn heard(&self) -> Vec<(u8, Ipv4Addr)> {
        std::mem::take(&mut self.heard.lock().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn answer(request: &[u8], kind: u8, own: Ipv4Addr, rules: &Rules) -> Option<Vec<u8>> {
    let gives = rules.gives?;
    let client = Ipv4Addr::new(request[12], request[13], request[14], request[15]);
    let refused = kind == 3 && rules.refuses == Some(client);
    let answer_kind = match kind {
        1 => 2,
        3 if refused => 6,
        3 if option(request, 54).is_none_or(|server| server == own.octets()) => 5,
        _ => return None,
    };
    let mut bytes = request[..240].to_vec();
    bytes[0] = 2;
    bytes[12..16].fill(0);
    bytes[16..20].copy_from_slice(&gives.octets());
    let mut add = |number: u8, content: &[u8]| {
        bytes.extend([number, u8::try_from(content.len()).unwrap()]);
        bytes.extend(content);
    };
    add(53, &[answer_kind]);
    add(54, &own.octets());
    if !refused {
        add(1, &[255, 255, 255, 0]);
        add(3, &own.octets());
        if rules.lease > 0 {
            add(51, &rules.lease.to_be_bytes());
        }
        add(58, &rules.renew.to_be_bytes());
    }
    add(255, &[]);
    bytes.pop();
    Some(bytes)
}

/// The content of an option of a message.
fn option(message: &[u8], number: u8) -> Option<Vec<u8>> {
    let mut rest = &message[240..];
    loop {
        match rest {
            [0, behind @ ..] => rest = behind,
            [255, ..] | [] => return None,
            [found, length, behind @ ..] => {
                let (content, behind) = behind.split_at(usize::from(*length));
                if *found == number {
                    return Some(content.to_vec());
                }
                rest = behind;
            }
            [_] => return None,
        }
    }
}
