//! Networks that a machine gets by its parameters.

use std::path::Path;

use polis_proto::api::NodeParameters;
use polis_proto::osbase::net::proto::interface::Type;
use polis_proto::osbase::net::proto::{Bond, Device, Interface, Net, Vlan, bond};
use prost::Message as _;

use super::network::hardware_address;

/// Changes a file of parameters: the only network device of the machine at `port` becomes `uplink`, the one member of a bond `pair` with
/// the address `untagged`, and over it the VLAN `tagged` of this number has the address `tagged`. Addresses have a prefix length.
///
/// # Panics
///
/// When the file cannot be read or written, or holds something else.
pub fn set_bond_with_vlan(parameters: &Path, port: usize, untagged: &str, vlan: i32, tagged: &str) {
    let bytes = std::fs::read(parameters).expect("it can be read");
    let mut message = NodeParameters::decode(&*bytes).expect("it holds parameters");
    let interface = |name: &str, kind: Type, address: &[&str]| Interface {
        name: name.to_owned(),
        r#type: Some(kind),
        address: address.iter().map(|text| (*text).to_owned()).collect(),
        ..Interface::default()
    };
    let device = Device { hardware_address: hardware_address(port), ..Device::default() };
    let pair = Bond {
        member_interface: vec!["uplink".to_owned()],
        link_monitor: Some(bond::LinkMonitor::CarrierMonitor(bond::CarrierMonitor {
            polling_interval_ms: 100,
            ..Default::default()
        })),
        mode: Some(bond::Mode::ActiveBackup(bond::ActiveBackup {})),
        ..Bond::default()
    };
    let vlan = Vlan { parent: "pair".to_owned(), id: vlan, protocol: 0 };
    let interface = vec![
        interface("uplink", Type::Device(device), &[]),
        interface("pair", Type::Bond(pair), &[untagged]),
        interface("tagged", Type::Vlan(vlan), &[tagged]),
    ];
    message.network_config = Some(Net { interface, nameserver: Vec::new() });
    std::fs::write(parameters, message.encode_to_vec()).expect("it can be written");
}
