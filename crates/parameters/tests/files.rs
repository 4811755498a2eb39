//! Parameters files made by another implementation, and what is left of them after damage.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

use polis_parameters::{
    Bootstrap, ClusterParameters, KnownNode, LabelError, MAX_LABELS, MAX_PARAMETERS_SIZE, Parameters, ParametersError,
    Register, StoragePolicy, TpmMode,
};
use polis_proto::api::NodeParameters;
use polis_proto::api::node_parameters::{Cluster, ClusterRegister};
use proptest::prelude::*;
use prost::Message as _;

fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file of the set.
fn files() -> Vec<String> {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".pb"))
        .collect();
    names.sort();
    names
}

fn bootstrap(name: &str) -> (Bootstrap, bool) {
    let parameters = Parameters::parse(&data(name)).unwrap_or_else(|error| panic!("{name}: {}", chain(&error)));
    match parameters.cluster {
        ClusterParameters::Bootstrap(bootstrap) => (bootstrap, parameters.has_network_configuration),
        ClusterParameters::Register(_) => panic!("{name} registers"),
    }
}

fn register(name: &str) -> Register {
    match Parameters::parse(&data(name)).unwrap().cluster {
        ClusterParameters::Register(register) => register,
        ClusterParameters::Bootstrap(_) => panic!("{name} bootstraps"),
    }
}

/// The message of an error and of everything below it.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

#[test]
fn good_files_mean_what_they_say() {
    use StoragePolicy::{NeedsEncryptionAndAuthentication as Authenticated, NeedsInsecure as Insecure};
    let table = [
        ("bootstrap-insecure.pb", Insecure, TpmMode::Disabled, false),
        ("bootstrap-insecure-labels-domain.pb", Insecure, TpmMode::Disabled, false),
        ("bootstrap-insecure-static-network.pb", Insecure, TpmMode::Disabled, true),
        ("bootstrap-defaults.pb", Authenticated, TpmMode::Required, false),
        ("bootstrap-authenticated-no-tpm.pb", Authenticated, TpmMode::Disabled, false),
        ("bootstrap-authenticated-tpm.pb", Authenticated, TpmMode::Required, false),
    ];
    for (name, storage, tpm, network) in table {
        let (found, has_network_configuration) = bootstrap(name);
        assert_eq!(
            (found.storage_policy, found.tpm_mode, has_network_configuration),
            (storage, tpm, network),
            "{name}"
        );
        assert_eq!(found.label_faults, [], "{name}");
    }
}

#[test]
fn labels_and_domain_are_taken() {
    let (found, _) = bootstrap("bootstrap-insecure-labels-domain.pb");
    assert_eq!(found.domain.to_string(), "cluster.example.internal");
    let labels: Vec<String> = found.labels.iter().map(ToString::to_string).collect();
    assert_eq!(labels, ["site=lab-1", "example.com/rack=r07", "empty="]);
    assert_eq!(bootstrap("bootstrap-insecure.pb").0.domain.to_string(), "cluster.internal");
}

#[test]
fn a_register_file_names_whom_to_ask() {
    let found = register("register.pb");
    assert_eq!(found.addresses, ["192.0.2.10".parse::<std::net::IpAddr>().unwrap()]);
    assert_eq!(found.certificate_authority.certificate().der(), data("ca.der"));
    assert_eq!(*found.ticket.to_bytes(), register_message().register_ticket);
    let id: polis_identity::NodeId = register_message().cluster_directory.unwrap().nodes[0].id.parse().unwrap();
    assert_eq!(found.known, [KnownNode { id, addresses: found.addresses }]);
}

/// The message of that file.
fn register_message() -> ClusterRegister {
    match NodeParameters::decode(&*data("register.pb")).unwrap().cluster {
        Some(Cluster::ClusterRegister(register)) => register,
        _ => panic!("it does not register"),
    }
}

/// What parsing says to the file with another ticket and other ids of nodes.
fn parse_with(ticket: &[u8], id: &str) -> Result<Parameters, ParametersError> {
    let mut register = register_message();
    register.register_ticket = ticket.to_vec();
    register.cluster_directory.as_mut().unwrap().nodes[0].id = id.into();
    let cluster = Some(Cluster::ClusterRegister(register));
    Parameters::parse(&NodeParameters { cluster, network_config: None }.encode_to_vec())
}

#[test]
fn a_ticket_that_cannot_be_one_is_refused_before_anybody_is_asked() {
    let whole = register_message().register_ticket;
    for length in 1..whole.len() {
        let error = chain(&parse_with(&whole[..length], "").unwrap_err());
        assert!(error.contains(&format!("has {length} bytes")) && error.contains("cut short"), "{error}");
    }
    let error = chain(&parse_with(&[&whole[..], &whole].concat(), "").unwrap_err());
    assert!(error.contains("something was added"), "{error}");
    let error = chain(&parse_with(&vec![0xff; whole.len()], "").unwrap_err());
    assert!(error.contains("it was damaged"), "{error}");
}

#[test]
fn a_node_without_a_usable_id_is_asked_like_any_other() {
    for id in ["", "somebody"] {
        match parse_with(&register_message().register_ticket, id).unwrap().cluster {
            ClusterParameters::Register(found) => assert_eq!((found.known.len(), found.addresses.len()), (0, 1)),
            ClusterParameters::Bootstrap(_) => panic!("it bootstraps"),
        }
    }
}

#[test]
fn bad_labels_are_left_out_and_named() {
    let (found, _) = bootstrap("bad-labels.pb");
    assert!(!found.label_faults.is_empty());
    for fault in &found.label_faults {
        assert!(!fault.label.is_empty() && !fault.to_string().contains('\n'), "{fault}");
    }
    assert!(found.label_faults.iter().any(|fault| fault.label.starts_with("-x=") && fault.error == LabelError::Key));

    let (found, _) = bootstrap("bad-labels-129.pb");
    assert_eq!(found.labels.iter().count(), MAX_LABELS);
    let faults: Vec<_> = found.label_faults.iter().map(|fault| (&*fault.label, &fault.error)).collect();
    assert_eq!(faults, [("k128=v", &LabelError::TooMany)]);
}

#[test]
fn every_bad_file_is_refused_with_the_field_and_the_fault() {
    let table: &[(&str, &[&str])] = &[
        ("bad-cut.pb", &["not a NodeParameters message, or was cut short"]),
        ("bad-empty.pb", &["empty"]),
        ("bad-neither-variant.pb", &["neither cluster_bootstrap nor cluster_register"]),
        ("bad-owner-key-31-bytes.pb", &["cluster_bootstrap", "owner_public_key has 31 bytes", "32"]),
        ("bad-owner-key-missing.pb", &["cluster_bootstrap", "owner_public_key is missing"]),
        ("bad-storage-policy-unknown.pb", &["cluster_bootstrap", "storage_security_policy has the unknown value"]),
        (
            "bad-register-address-not-an-ip.pb",
            &["cluster_register", "cluster_directory", "not an address", "not an IP address"],
        ),
        ("bad-register-ca-not-a-certificate.pb", &["cluster_register", "ca_certificate is not a certificate"]),
        ("bad-register-empty-directory.pb", &["cluster_register", "cluster_directory names no node"]),
        ("bad-register-no-ticket.pb", &["cluster_register", "register_ticket is missing"]),
        ("bad-register-node-without-address.pb", &["cluster_register", "cluster_directory", "without an address"]),
    ];
    for (name, parts) in table {
        let error = chain(&Parameters::parse(&data(name)).unwrap_err());
        for part in *parts {
            assert!(error.contains(part), "{name}: {part:?} is missing in {error:?}");
        }
    }
    let tested = table.iter().map(|(name, _)| (*name).to_owned());
    let bad: Vec<String> =
        files().into_iter().filter(|name| name.starts_with("bad-") && !name.starts_with("bad-labels")).collect();
    let mut tested: Vec<String> = tested.collect();
    tested.sort();
    assert_eq!(tested, bad, "a file is not in the table");
}

#[test]
fn a_file_that_was_cut_anywhere_is_refused() {
    // These hold one field at the top, so no cut leaves a whole message.
    for name in ["bootstrap-insecure.pb", "bootstrap-defaults.pb", "bootstrap-insecure-labels-domain.pb", "register.pb"]
    {
        let whole = data(name);
        for length in 0..whole.len() {
            let error = Parameters::parse(&whole[..length]).unwrap_err();
            match length {
                0 => assert!(matches!(error, ParametersError::Empty), "{name}: {error}"),
                _ => assert!(matches!(error, ParametersError::Malformed(_)), "{name} cut to {length}: {error}"),
            }
        }
    }
    // Where there are several fields, some cuts leave a whole message, and none may do worse than an error.
    for name in files() {
        let whole = data(&name);
        for length in 0..whole.len() {
            let _ = Parameters::parse(&whole[..length]);
        }
    }
}

#[test]
fn a_flipped_byte_is_never_worse_than_an_error() {
    for name in files() {
        let mut bytes = data(&name);
        for position in 0..bytes.len() {
            for mask in [0x01, 0x08, 0x80, 0xff] {
                bytes[position] ^= mask;
                if let Err(error) = Parameters::parse(&bytes) {
                    assert!(!chain(&error).is_empty());
                }
                bytes[position] ^= mask;
            }
        }
    }
}

#[test]
fn a_file_of_the_wrong_kind_is_refused_before_it_is_parsed() {
    let huge = vec![0x0a; 10 << 20];
    assert!(matches!(Parameters::parse(&huge), Err(ParametersError::TooLarge)));
    let largest = vec![0x0a; MAX_PARAMETERS_SIZE];
    assert!(matches!(Parameters::parse(&largest), Err(ParametersError::Malformed(_))));
}

#[test]
fn the_ticket_reaches_no_debug_output() {
    assert_eq!(format!("{:?}", register("register.pb")), "Register { addresses: [192.0.2.10], .. }");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096)) {
        if let Err(error) = Parameters::parse(&bytes) {
            prop_assert!(!chain(&error).is_empty());
        }
    }
}

#[test]
fn a_static_network_is_parsed_and_a_bad_one_is_named() {
    let bytes = data("bootstrap-insecure-static-network.pb");
    let network = Parameters::parse(&bytes).unwrap().network.unwrap();
    let [uplink] = network.interfaces() else { panic!("{network:?}") };
    assert_eq!((&*uplink.name, uplink.mtu), ("uplink", Some(1500)));
    assert_eq!(uplink.addresses[0].to_string(), "192.0.2.10/24");
    assert_eq!(network.nameservers()[0].to_string(), "192.0.2.53");

    let mut message = NodeParameters::decode(&*bytes).unwrap();
    message.network_config.as_mut().unwrap().interface[0].address[0] = "192.0.2.10".to_owned();
    let error = Parameters::parse(&message.encode_to_vec()).unwrap_err();
    assert_eq!(error.to_string(), "network_config is not usable");
    let cause = Error::source(&error).unwrap().to_string();
    assert!(cause.starts_with("interface[0].address[0] is \"192.0.2.10\""), "{cause}");
}
