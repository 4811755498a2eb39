//! Who listens on the bus between a program and a TPM.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use polis_testkit::address::TestAddress;

use crate::emulator::{Emulator, PORT, tcti};

/// What went over the bus, each direction for itself.
#[derive(Clone, Default)]
struct Heard([Arc<Mutex<Vec<u8>>>; 2]);

/// Between programs and a TPM. Its threads wait for connections until the test process ends.
pub(crate) struct Proxy {
    address: TestAddress,
    heard: Heard,
}

impl Proxy {
    /// Listens for what goes to this TPM.
    pub(crate) fn before(emulator: &Emulator) -> Self {
        let this = Self { address: TestAddress::claim(), heard: Heard::default() };
        carry_all(this.address.ip, emulator.ip(), PORT, this.heard.clone());
        carry_all(this.address.ip, emulator.ip(), PORT + 1, Heard::default());
        this
    }

    /// How programs reach the TPM through it.
    pub(crate) fn tcti(&self) -> String {
        tcti(self.address.ip)
    }

    /// Whether these bytes went over the bus since the last time it was forgotten.
    pub(crate) fn has_heard(&self, bytes: &[u8]) -> bool {
        self.heard.0.iter().any(|direction| {
            let heard = direction.lock().unwrap_or_else(PoisonError::into_inner);
            heard.windows(bytes.len()).any(|window| window == bytes)
        })
    }

    /// How many bytes went over the bus, to the TPM and back.
    pub(crate) fn amount(&self) -> [usize; 2] {
        self.heard.0.each_ref().map(|direction| direction.lock().unwrap_or_else(PoisonError::into_inner).len())
    }
}

fn carry_all(from: IpAddr, to: IpAddr, port: u16, heard: Heard) {
    let listener = TcpListener::bind((from, port)).unwrap();
    thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(client) = client else { return };
            let Ok(server) = TcpStream::connect(SocketAddr::new(to, port)) else { continue };
            let [to_server, to_client] = heard.0.clone();
            let ways =
                [(client.try_clone().unwrap(), server.try_clone().unwrap(), to_server), (server, client, to_client)];
            for (from, to, heard) in ways {
                thread::spawn(move || carry(from, to, &heard));
            }
        }
    });
}

fn carry(mut from: TcpStream, mut to: TcpStream, heard: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        // Heard before it arrives, so that whoever has the answer finds all of it.
        heard.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
