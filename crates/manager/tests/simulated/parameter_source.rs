//! Where parameters are looked for.

use polis_curator::layout;
use polis_manager::{Failure, ParameterSource, ParametersOrigin};
use polis_parameters::{MAX_PARAMETERS_SIZE, OwnParameters};
use polis_proto::curator_state;
use polis_recovery::RecoveryPublicKey;
use polis_storage::simulation::Image;
use prost::Message as _;

use crate::common::{ParametersFile, contents, live};

#[test]
fn the_first_place_that_has_parameters_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    // Which of the three places have a file, whether the first is named, and what is read from where.
    let table = [
        (["file", "firmware", "esp"].as_slice(), true, Some("file")),
        (&["firmware", "esp"], true, None),
        (&["file", "firmware", "esp"], false, Some("firmware")),
        (&["file", "esp"], false, Some("esp")),
        (&["file"], false, None),
    ];
    for (present, named, expect) in table {
        for name in ["file", "firmware", "esp"] {
            if present.contains(&name) {
                std::fs::write(place(name), name).unwrap();
            } else if place(name).exists() {
                std::fs::remove_file(place(name)).unwrap();
            }
        }
        let file = named.then(|| place("file"));
        let source = ParameterSource { file, firmware: place("firmware"), esp: place("esp") };
        match (source.read(), expect) {
            (Ok(given), Some(expect)) => {
                assert_eq!(given.bytes, expect.as_bytes(), "{present:?} {named}");
                assert!(given.origin.to_string().contains(expect), "{}", given.origin);
            }
            // A file that is named and is not there is not made up for by another place.
            (Err(Failure::ParametersUnreadable { path, .. }), None) => assert!(named && path == place("file")),
            (Err(Failure::NoParameters { .. }), None) => assert!(!named),
            (outcome, _) => panic!("{present:?} {named}: {:?}", outcome.map(|given| given.origin.to_string())),
        }
    }
}

#[test]
fn what_is_beside_the_parameters_goes_with_them() {
    let directory = tempfile::tempdir().unwrap();
    let [file, own] = ["node.pb", "polis.pb"].map(|name| directory.path().join(name));
    std::fs::write(&file, "parameters").unwrap();
    let nowhere = directory.path().join("none/parameters.pb");
    let recovery_key = RecoveryPublicKey::new([9; 32]).unwrap();
    let bytes = OwnParameters { recovery_key }.to_bytes();
    // In each of the places, as what is beside one that is not taken says nothing.
    for place in 0..3 {
        let at = |index| if place == index { file.clone() } else { nowhere.clone() };
        let source = ParameterSource { file: (place == 0).then(|| file.clone()), firmware: at(1), esp: at(2) };
        std::fs::write(&own, &bytes).unwrap();
        assert_eq!(source.read().unwrap().bytes, [b"parameters", &bytes[..]].concat(), "{place}");
        for damaged in [&bytes[1..], b""] {
            std::fs::write(&own, damaged).unwrap();
            let failure = source.read().err().unwrap();
            let Failure::Parameters { origin: ParametersOrigin::File(path), .. } = failure else { panic!("{failure}") };
            assert_eq!(path, own);
        }
        std::fs::remove_file(&own).unwrap();
        assert_eq!(source.read().unwrap().bytes, b"parameters");
    }
}

#[test]
fn a_recovery_key_beside_the_parameters_is_there_at_the_birth() {
    let file = ParametersFile::new();
    let without = live(Image::default(), file.source());
    let recovery_key = RecoveryPublicKey::new([9; 32]).unwrap();
    file.replace_own(&OwnParameters { recovery_key }.to_bytes());
    let with = live(Image::default(), file.source());
    for (life, expected) in [(without, None), (with, Some(recovery_key.as_bytes().to_vec()))] {
        assert!(life.fits_together().is_ok(), "{}", life.describe());
        let found = contents(&life.end()).get(&layout::recovery_key()).cloned();
        let found = found.map(|bytes| curator_state::RecoveryKey::decode(&bytes[..]).unwrap().public_key);
        assert_eq!(found, expected);
    }
}

#[test]
fn no_more_is_read_than_is_needed_to_see_that_it_is_too_much() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large");
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let source = ParameterSource { file: Some(file.clone()), firmware: file.clone(), esp: file };
    assert_eq!(source.read().unwrap().bytes.len(), MAX_PARAMETERS_SIZE + 1);
}
