//! Which static configuration is in force, and how it outlives the parameters that brought it (metropolis.md D.4).

use polis_network_configuration::{ConfigurationError, NetworkConfiguration};
use polis_storage::{KeptNetwork, TwoGenerations, TwoGenerationsError};

/// Why the static configuration could not be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum KeptConfigurationError {
    /// The files failed.
    #[error("cannot read or write the network configuration that is kept on this machine")]
    Files(#[source] TwoGenerationsError),
    /// What is kept is whole, and no configuration.
    #[error(
        "the network configuration that is kept on this machine cannot be used; give the node parameters with a configuration, \
         which then takes its place"
    )]
    Unusable(#[source] ConfigurationError),
}

/// The configuration in force: the one `given` with the parameters, which is kept for later starts, or else the one that was kept.
/// None: there never was one. Blocks; call it where that is allowed.
///
/// # Errors
///
/// When the files cannot be read or written. A configuration that was given is in force nevertheless: use it, and tell.
pub fn keep_configuration(
    files: &TwoGenerations<KeptNetwork>,
    given: Option<&NetworkConfiguration>,
) -> Result<Option<NetworkConfiguration>, KeptConfigurationError> {
    let kept = files.load();
    let Some(given) = given else {
        return match kept.map_err(KeptConfigurationError::Files)? {
            None => Ok(None),
            Some(kept) => {
                NetworkConfiguration::parse(&kept.value.net).map(Some).map_err(KeptConfigurationError::Unusable)
            }
        };
    };
    let record = KeptNetwork { net: given.as_bytes().to_vec() };
    // Each boot brings the same parameters; the disk is written only when they change.
    if kept.is_ok_and(|kept| kept.is_some_and(|kept| kept.value == record)) {
        return Ok(Some(given.clone()));
    }
    files.store(&record, "network/keep").map_err(KeptConfigurationError::Files)?;
    Ok(Some(given.clone()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polis_proto::osbase::net::proto::{Device, Interface, Net, interface::Type};
    use polis_storage::simulation::SimulatedDisk;
    use polis_storage::{Disk, Layout};

    use super::*;

    fn configuration(driver: &str) -> NetworkConfiguration {
        let device = Device { driver: driver.to_owned(), ..Device::default() };
        let interface = Interface { name: "up".to_owned(), r#type: Some(Type::Device(device)), ..Interface::default() };
        NetworkConfiguration::from_wire(&Net { interface: vec![interface], nameserver: Vec::new() }).unwrap()
    }

    #[test]
    fn what_is_given_overrides_and_stays() {
        let disk: Arc<dyn Disk> = Arc::new(SimulatedDisk::default());
        let layout = Layout::new(disk);
        layout.prepare_start().unwrap();
        let files = &layout.esp.polis.network;
        assert_eq!(keep_configuration(files, None).unwrap(), None);
        let first = configuration("first");
        assert_eq!(keep_configuration(files, Some(&first)).unwrap().as_ref(), Some(&first));
        assert_eq!(keep_configuration(files, None).unwrap().as_ref(), Some(&first));
        let generation = files.load().unwrap().unwrap().generation;
        // The same once more is not written.
        keep_configuration(files, Some(&first)).unwrap();
        assert_eq!(files.load().unwrap().unwrap().generation, generation);
        let second = configuration("second");
        keep_configuration(files, Some(&second)).unwrap();
        assert_eq!(keep_configuration(files, None).unwrap().as_ref(), Some(&second));
    }
}
