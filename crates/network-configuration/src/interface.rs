//! What an interface of a static configuration is, in values that can only be good.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// Longest name of an interface, in bytes: the kernel's IFNAMSIZ without its zero.
pub const INTERFACE_NAME_LIMIT: usize = 15;

/// One interface, physical or built on others.
#[derive(Clone, Debug, PartialEq)]
pub struct Interface {
    /// What it is called here and by the kernel. Unique.
    pub name: String,
    /// What it is.
    pub kind: InterfaceKind,
    /// Whether it asks for an IPv4 address by DHCP.
    pub ipv4_autoconfig: bool,
    /// Whether it makes itself IPv6 addresses from what routers announce, and of what kind.
    pub ipv6_autoconfig: Option<Ipv6Privacy>,
    /// Static addresses with the lengths of their networks' prefixes.
    pub addresses: Vec<IpNet>,
    /// Static routes that leave through it.
    pub routes: Vec<Route>,
    /// Longest packet in bytes; absent: the kernel's default.
    pub mtu: Option<u32>,
}

/// What an interface is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceKind {
    /// A device that the machine has.
    Device(Device),
    /// Several interfaces as one.
    Bond(Bond),
    /// A virtual network on top of another interface.
    Vlan(Vlan),
}

/// A device that the machine has, or should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// How it is found.
    pub found_by: DeviceMatch,
    /// Which of several that match, counted from 0 in the kernel's order.
    pub index: u32,
}

/// How a device is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceMatch {
    /// By the hardware address that it was made with.
    HardwareAddress(HardwareAddress),
    /// By the name of the kernel's driver.
    Driver(String),
}

impl fmt::Display for Device {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.found_by {
            DeviceMatch::HardwareAddress(address) => write!(formatter, "hardware address {address}")?,
            DeviceMatch::Driver(driver) => write!(formatter, "driver {driver}")?,
        }
        if self.index > 0 { write!(formatter, ", number {} of those", self.index + 1) } else { Ok(()) }
    }
}

/// Hardware address of an Ethernet device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HardwareAddress(pub [u8; 6]);

impl fmt::Display for HardwareAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, f] = self.0;
        write!(formatter, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")
    }
}

/// Several interfaces as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bond {
    /// Names of its members, at least one, each of them another interface of the configuration and in this bond only.
    pub members: Vec<String>,
    /// How many members must be up for the bond to be up; absent: one.
    pub min_links: Option<u32>,
    /// How it is noticed that a member's link is down; absent: by its driver, every [`CarrierMonitor::DEFAULT_INTERVAL`] ms,
    /// since a bond that notices nothing is of no use.
    pub carrier_monitor: CarrierMonitor,
    /// What decides on which member a packet leaves.
    pub transmit_hash: TransmitHash,
    /// How the members share the work.
    pub mode: BondMode,
}

/// Link state as the device's driver reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CarrierMonitor {
    /// Time between two looks, in ms.
    pub polling_interval_ms: u32,
    /// Whether to ask the hardware in each look instead of believing what the driver has told.
    pub force_polling: bool,
    /// How long a link must be down before it counts as such, in ms.
    pub down_delay_ms: u32,
    /// How long a link must be up before it counts as such, in ms.
    pub up_delay_ms: u32,
}

impl CarrierMonitor {
    /// Time between two looks where none is given, in ms: what the kernel's documentation recommends to begin with.
    pub const DEFAULT_INTERVAL: u32 = 100;
}

impl Default for CarrierMonitor {
    fn default() -> Self {
        Self { polling_interval_ms: Self::DEFAULT_INTERVAL, force_polling: false, down_delay_ms: 0, up_delay_ms: 0 }
    }
}

/// What decides on which member of a bond a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransmitHash {
    /// Hardware addresses.
    Layer2,
    /// IP addresses and ports.
    Layer34,
    /// Hardware and IP addresses.
    Layer23,
    /// As [`TransmitHash::Layer23`], of what is inside of a tunnel.
    EncapsulatedLayer23,
    /// As [`TransmitHash::Layer34`], of what is inside of a tunnel.
    EncapsulatedLayer34,
    /// VLAN and source hardware address.
    VlanSourceAddress,
}

/// How the members of a bond share the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BondMode {
    /// IEEE 802.1AX link aggregation.
    Lacp {
        /// How often the switch is to send its state.
        rate: LacpRate,
        /// When another group of members is chosen.
        selection: LacpSelection,
        /// Priority of this machine as a system; absent: the kernel's default.
        actor_system_priority: Option<u16>,
        /// The upper ten bits of the key of each port; absent: none.
        user_port_key: Option<u16>,
        /// Hardware address of this machine as a system; absent: that of the bond.
        actor_system: Option<HardwareAddress>,
    },
    /// One member carries the traffic, the others wait.
    ActiveBackup,
}

/// How often the switch is to send its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LacpRate {
    /// Every 30 s.
    Slow,
    /// Every second.
    Fast,
}

/// When another group of members is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LacpSelection {
    /// When the one in use has no member left.
    Stable,
    /// When another one has more bandwidth.
    Bandwidth,
    /// When another one has more members.
    Count,
}

/// A virtual network on top of another interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vlan {
    /// Name of the interface below.
    pub parent: String,
    /// 1 to 4094.
    pub id: u16,
    /// Which tag it has.
    pub protocol: VlanProtocol,
}

/// Tag of a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VlanProtocol {
    /// IEEE 802.1Q.
    Customer,
    /// IEEE 802.1ad.
    Service,
}

/// Which of its IPv6 addresses an interface uses for new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ipv6Privacy {
    /// It makes no temporary ones.
    Disable,
    /// The lasting ones.
    Avoid,
    /// The temporary ones.
    Prefer,
}

/// A static route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where it leads to.
    pub destination: IpNet,
    /// Router; absent: the destination is on the link.
    pub gateway: Option<IpAddr>,
    /// Source address of what leaves by it; absent: the kernel chooses.
    pub source: Option<IpAddr>,
    /// The lower, the sooner it is taken; absent: the kernel's default.
    pub metric: Option<u32>,
}
