//! Node parameters: what a machine is told before its first start, parsed once and for all.
//!
//! [`Parameters::parse`] turns the bytes of a `NodeParameters` file (`wire.md`) into values that are known to be good, or
//! says which field is bad, why, and what would be good instead. Nothing behind this crate looks at the wire message
//! again. What that message has no field for is in a file of its own beside it ([`OwnParameters`]); a node reads both as one.
//! Labels are the one exception to "all or nothing": as in Metropolis, a bad label does not keep a machine from
//! enrolling; it is left out, and named in [`Bootstrap::label_faults`] so that nobody is left to wonder.

#![forbid(unsafe_code)]

mod bootstrap;
mod domain;
mod file;
mod labels;
mod own;
mod policy;
mod register;
mod ticket;

use polis_network_configuration::{ConfigurationError, NetworkConfiguration};
use polis_proto::api::{NodeParameters, node_parameters::Cluster};
use prost::Message as _;

pub use bootstrap::{Bootstrap, BootstrapError};
pub use domain::{ClusterDomain, DomainError};
pub use file::read_file;
pub use labels::{Label, LabelError, LabelFault, Labels, MAX_LABELS};
pub use own::{OWN_FILE_NAME, OwnParameters, OwnParametersError, beside};
pub use policy::{PolicyError, StoragePolicy, TpmMode};
pub use register::{KnownNode, Register, RegisterError};
pub use ticket::{RegisterTicket, TICKET_LENGTH, TicketError};

/// Largest parameters file that is read, in bytes. The largest that makes sense, with 128 labels of full length and the
/// configuration of some dozens of interfaces, stays below a tenth of this.
pub const MAX_PARAMETERS_SIZE: usize = 1 << 20;

/// What a machine is told to do when it has no cluster yet.
#[derive(Clone, Debug)]
pub struct Parameters {
    /// Make a cluster, or ask one for admission.
    pub cluster: ClusterParameters,
    /// Whether a static network configuration is present. A daemon names it as not its business.
    pub has_network_configuration: bool,
    /// The static network configuration, if one is present.
    pub network: Option<NetworkConfiguration>,
}

/// The two ways into a cluster.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one value in a process, and only while it starts")]
pub enum ClusterParameters {
    /// Make a new cluster.
    Bootstrap(Bootstrap),
    /// Register with an existing cluster.
    Register(Register),
}

/// Why bytes are not usable parameters. The messages name the field as `wire.md` does.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParametersError {
    /// No bytes at all.
    #[error("the file is empty; make it with `polis parameters bootstrap`")]
    Empty,
    /// More bytes than [`MAX_PARAMETERS_SIZE`].
    #[error(
        "the file has more than {MAX_PARAMETERS_SIZE} bytes, which no NodeParameters message needs; is it another file?"
    )]
    TooLarge,
    /// Not a `NodeParameters` message.
    #[error("the file is not a NodeParameters message, or was cut short; make it anew with `polis parameters`")]
    Malformed(#[source] prost::DecodeError),
    /// Neither variant of the oneof `cluster`.
    #[error(
        "neither cluster_bootstrap nor cluster_register is set, so it does not say which cluster this node is for; \
         make it anew with `polis parameters`"
    )]
    NeitherVariant,
    /// A field of `cluster_bootstrap` is bad.
    #[error("cluster_bootstrap is not usable")]
    Bootstrap(#[from] BootstrapError),
    /// A field of `cluster_register` is bad.
    #[error("cluster_register is not usable")]
    Register(#[from] RegisterError),
    /// A field of `network_config` is bad.
    #[error("network_config is not usable")]
    Network(#[from] ConfigurationError),
    /// What is appended of [`OWN_FILE_NAME`] is bad.
    #[error("what {OWN_FILE_NAME} adds is not usable")]
    Own(#[from] OwnParametersError),
}

impl Parameters {
    /// Parses the bytes of a parameters file, with or without those of [`OWN_FILE_NAME`] after them.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong with them; labels never are.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParametersError> {
        if bytes.is_empty() {
            return Err(ParametersError::Empty);
        }
        if bytes.len() > MAX_PARAMETERS_SIZE {
            return Err(ParametersError::TooLarge);
        }
        let message = NodeParameters::decode(bytes).map_err(ParametersError::Malformed)?;
        let cluster = match message.cluster {
            None => return Err(ParametersError::NeitherVariant),
            Some(Cluster::ClusterBootstrap(bootstrap)) => {
                let recovery_key = OwnParameters::appended_to(bytes)?.map(|own| own.recovery_key);
                ClusterParameters::Bootstrap(Bootstrap::from_wire(bootstrap, recovery_key)?)
            }
            Some(Cluster::ClusterRegister(register)) => ClusterParameters::Register(register.try_into()?),
        };
        let network = message.network_config.as_ref().map(NetworkConfiguration::from_wire).transpose()?;
        Ok(Self { cluster, has_network_configuration: network.is_some(), network })
    }
}
