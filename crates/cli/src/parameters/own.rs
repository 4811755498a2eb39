//! What goes with parameters in a file of its own beside them.

use std::io;
use std::path::Path;

use polis_parameters::{OwnParameters, beside, read_file};
use polis_recovery::RecoveryPublicKey;

use super::bootstrap::{MODE, output_failure};
use super::{Written, write_output};
use crate::atomic_file::Existing;
use crate::failure::Failure;
use crate::shell;
use crate::view::print;

/// Writes the recovery key beside parameters that go to `output`. Without one, what is there stays: it is said that a node takes it.
///
/// # Errors
///
/// When another one is there and is to be kept, when what is there is not usable, or when the system refuses.
pub(super) fn settle(
    output: &Path,
    recovery_key: Option<RecoveryPublicKey>,
    existing: Existing,
) -> Result<(), Failure> {
    let path = beside(output);
    if path == output {
        return Err(Failure::usage(format!("{} cannot be the name of a parameters file", output.display()))
            .because_of("the recovery key has this name, beside the parameters")
            .hint("write to another file"));
    }
    let Some(recovery_key) = recovery_key else {
        return match found(&path)? {
            Some(own) => print(&format!(
                "{} is there: a cluster made with these parameters has the recovery key {}\n",
                path.display(),
                own.recovery_key.fingerprint()
            )),
            None => Ok(()),
        };
    };
    let bytes = OwnParameters { recovery_key }.to_bytes();
    let written = write_output(&path, &bytes, MODE, existing).map_err(|error| output_failure(&error))?;
    let what = match written {
        Written::New => "wrote",
        Written::Same => "unchanged:",
    };
    print(&format!(
        "{what} {} (recovery key {}); it has to lie beside the parameters, by this name\n",
        path.display(),
        recovery_key.fingerprint()
    ))
}

/// The bytes that a node appends to the parameters at `path`.
///
/// # Errors
///
/// When there are some and they are not usable.
pub(super) fn beside_as_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    Ok(found(&beside(path))?.map(|own| own.to_bytes()).unwrap_or_default())
}

fn found(path: &Path) -> Result<Option<OwnParameters>, Failure> {
    let unusable = |error: &dyn std::error::Error| {
        Failure::failed(format!("{}, which goes with the parameters beside it, is not usable", path.display()))
            .because(error)
            .hint(format!("make it anew with --recovery-key FILE --force, or remove it: rm {}", shell::quote(path)))
    };
    match read_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unusable(&error)),
        Ok(bytes) => OwnParameters::parse(&bytes).map(Some).map_err(|error| unusable(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polis_parameters::{ClusterParameters, Parameters};

    use crate::fake::run;

    #[test]
    fn a_recovery_key_goes_beside_the_parameters() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name).display().to_string();
        run(&format!("polis owner create --config {}", directory.path().display())).succeeds();
        for name in ["one", "two"] {
            let to = path(name);
            run(&format!("polis recovery-key create -o {to}.pem --words-to {to}.words")).succeeds();
        }
        let (owner, output, own) = (path("owner-key.pem"), path("node.pb"), path("polis.pb"));
        let bootstrap = |more: &str| run(&format!("polis parameters bootstrap --owner-key {owner} -o {output} {more}"));
        let fingerprint = |name: &str| {
            run(&format!("polis recovery-key show {}.pem -o json", path(name))).json()["fingerprint"].clone()
        };
        let shown =
            || run(&format!("polis parameters show {output} -o json")).json()["bootstrap"]["recovery_key"].clone();

        assert!(!bootstrap("").succeeds().contains("recovery key"));
        assert!(!fs::exists(&own).unwrap());
        assert_eq!(shown(), serde_json::Value::Null);

        let outcome = bootstrap(&format!("--recovery-key {}.pem", path("one")));
        assert!(outcome.succeeds().contains(&own));
        assert_eq!(shown(), fingerprint("one"));
        let both = [fs::read(&output).unwrap(), fs::read(&own).unwrap()].concat();
        let ClusterParameters::Bootstrap(parsed) = Parameters::parse(&both).unwrap().cluster else {
            unreachable!("bootstrap was written")
        };
        assert_eq!(parsed.recovery_key.unwrap().fingerprint().to_string(), fingerprint("one"));

        // What is there is never taken in silence, nor replaced without a word.
        assert!(bootstrap("").succeeds().contains(fingerprint("one").as_str().unwrap()));
        let two = format!("--recovery-key {}.pem", path("two"));
        bootstrap(&two).fails(1, &[&own, "another content", "--force"]);
        assert_eq!(shown(), fingerprint("one"));
        bootstrap(&format!("{two} --force")).succeeds();
        assert_eq!(shown(), fingerprint("two"));

        fs::write(&own, "damaged").unwrap();
        bootstrap("").fails(1, &[&own, "is not usable", "rm "]);
        run(&format!("polis parameters show {output}")).fails(1, &[&own, "is not usable"]);
        bootstrap(&format!("--recovery-key {}", path("none"))).fails(2, &["could not be read"]);
        let line = format!("polis parameters bootstrap --owner-key {owner} -o {own}");
        run(&line).fails(2, &["cannot be the name"]);
    }
}
