//! Where parameters are looked for.

use polis_manager::{Failure, ParameterSource};
use polis_parameters::MAX_PARAMETERS_SIZE;

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
fn no_more_is_read_than_is_needed_to_see_that_it_is_too_much() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("large");
    std::fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    let source = ParameterSource { file: Some(file.clone()), firmware: file.clone(), esp: file };
    assert_eq!(source.read().unwrap().bytes.len(), MAX_PARAMETERS_SIZE + 1);
}
