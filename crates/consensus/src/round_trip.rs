//! How long a packet takes to a machine and back, measured by what every machine answers: a request for a connection.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

use crate::dialer::PeerMap;
use crate::peer_url::PEER_PORT;
use crate::probe::Prober;

/// Requests per measurement, of which the shortest counts: the first also pays for finding the neighbour.
const ATTEMPTS: u32 = 3;

/// Measures the round trip to `address`, within `deadline` in all. A machine on which nothing listens at the peer port
/// refuses, which takes as long as accepting. `None`: it does not answer.
pub(crate) async fn measure(address: IpAddr, deadline: Duration) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    let attempts = async {
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            match TcpStream::connect(SocketAddr::new(address, PEER_PORT)).await {
                Err(error) if error.kind() != ErrorKind::ConnectionRefused => break,
                Ok(_) | Err(_) => {}
            }
            let took = began.elapsed();
            shortest = Some(shortest.map_or(took, |known| known.min(took)));
        }
    };
    // What was measured until then counts.
    let _ = timeout(deadline, attempts).await;
    shortest
}

/// Measures the round trips to all peers at the same time; that to the farthest one that answers within `deadline`.
pub(crate) async fn farthest(prober: &Prober, peers: &PeerMap, deadline: Duration) -> Option<Duration> {
    let measured = peers.iter().map(|(identity, address)| timeout(deadline, prober.round_trip(*identity, *address)));
    join_all(measured).await.into_iter().filter_map(|measured| measured.ok().flatten()).max()
}

#[cfg(test)]
mod tests {
    use polis_identity::NodeKey;
    use tokio::net::TcpSocket;

    use super::*;
    use crate::pki::PeerPki;

    const DEADLINE: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn a_machine_answers_whether_or_not_a_member_runs_on_it() {
        let here: IpAddr = "127.45.0.1".parse().unwrap();
        let listener = std::net::TcpListener::bind((here, PEER_PORT)).unwrap();
        assert!(measure(here, DEADLINE).await.unwrap() < DEADLINE);
        drop(listener);
        assert!(measure(here, DEADLINE).await.unwrap() < DEADLINE);
    }

    #[tokio::test]
    async fn one_that_does_not_answer_has_no_round_trip() {
        // Somebody listens and never accepts, and there is no more room to wait in.
        let silent: IpAddr = "127.45.0.3".parse().unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((silent, PEER_PORT).into()).unwrap();
        let listener = socket.listen(0).unwrap();
        let _waiting = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let began = Instant::now();
        let short = Duration::from_millis(50);
        assert_eq!(measure(silent, short).await, None);
        assert!(began.elapsed() < DEADLINE);
        let peers = PeerMap::from([
            ("fd00::1".parse().unwrap(), SocketAddr::new(silent, PEER_PORT)),
            ("fd00::2".parse().unwrap(), SocketAddr::new("127.45.0.2".parse().unwrap(), PEER_PORT)),
        ]);
        let prober = Prober::new(&PeerPki::found(&NodeKey::generate()));
        assert!(farthest(&prober, &peers, DEADLINE).await.is_some());
        assert_eq!(farthest(&prober, &PeerMap::new(), short).await, None);
    }
}
