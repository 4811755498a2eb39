//! The rules of dependencies, kept: who may know whom, where unsafe code may stand, what is banned, under which licences
//! others' code comes, and from where. The tables are in `policy`, the checker in `rules`; that the checker can fail is shown
//! on made-up metadata.

#![forbid(unsafe_code)]

mod made_up;
mod policy;
mod rules;

use std::path::Path;
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

use policy::POLICY;

/// Metadata of this workspace, as locked, for the platform it is built on: what other platforms need does not ship.
fn workspace() -> Metadata {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("-vV").output().expect("rustc can be started");
    let version = String::from_utf8(output.stdout).expect("rustc prints text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("rustc -vV names its host");
    MetadataCommand::new()
        .manifest_path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml"))
        .other_options(["--locked", "--offline", "--filter-platform", host].map(String::from))
        .exec()
        .expect("cargo metadata reads the workspace; everything it needs was fetched when this test was built")
}

#[test]
fn dependencies_keep_to_the_policy() {
    assert_eq!(rules::complaints(&workspace(), &POLICY), Vec::<String>::new());
}

#[test]
fn unsafe_code_is_in_one_crate_only() {
    assert_eq!(rules::unsafe_code(&workspace(), &POLICY, |path| std::fs::read_to_string(path)), Vec::<String>::new());
}

#[test]
fn every_crate_takes_the_lints_of_the_workspace() {
    assert_eq!(rules::lints(&workspace(), |path| std::fs::read_to_string(path)), Vec::<String>::new());
}
