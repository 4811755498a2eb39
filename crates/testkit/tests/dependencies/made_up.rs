//! The checker on a made-up workspace: each rule is broken once, and exactly that is reported.

use cargo_metadata::{Metadata, MetadataCommand};
use serde_json::{Value, json};

use crate::policy::{Ban, OneVersion, Policy, Reserved, Room};
use crate::rules;

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

const POLICY: Policy = Policy {
    rooms: &[
        Room { package: "cellar", floor: 0, may_use: &[] },
        Room { package: "kitchen", floor: 1, may_use: &["cellar"] },
        Room { package: "kit", floor: 2, may_use: &["cellar"] },
    ],
    unsafe_code_in: "cellar",
    testkit: "kit",
    reserved: &[Reserved { package: "knife", for_packages: &["kitchen"], reason: "it is sharp" }],
    banned: &[Ban { package: "poison", reason: "it kills" }],
    not_ours: &[Ban { package: "ketchup", reason: "guests may" }],
    one_version: &[OneVersion { package: "oven", also: &["1."] }],
    licences: &["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"],
    registry: REGISTRY,
};

/// A package as `cargo metadata` describes it; `dependencies` are (name, kind) pairs, where a kind of null is the normal one.
fn package(
    name: &str,
    version: &str,
    source: Option<&str>,
    license: Option<&str>,
    dependencies: &[(&str, Value)],
) -> Value {
    let id = format!("{name}@{version}");
    let directory = if source.is_some() { format!("/registry/{id}") } else { format!("/house/{name}") };
    let dependencies: Vec<Value> = dependencies
        .iter()
        .map(|(name, kind)| {
            json!({
                "name": name, "source": null, "req": "*", "kind": kind, "optional": false, "uses_default_features": true,
                "features": [], "target": null, "rename": null, "registry": null, "path": null,
            })
        })
        .collect();
    json!({
        "name": name, "version": version, "id": id, "source": source, "license": license, "license_file": null,
        "description": null, "authors": [], "categories": [], "keywords": [], "readme": null, "repository": null,
        "homepage": null, "documentation": null, "edition": "2024", "links": null, "metadata": null, "publish": null,
        "default_run": null, "rust_version": null, "features": {}, "dependencies": dependencies,
        "manifest_path": format!("{directory}/Cargo.toml"),
        "targets": [{
            "name": name, "kind": ["lib"], "crate_types": ["lib"], "src_path": format!("{directory}/src/lib.rs"),
            "edition": "2024", "doc": true, "doctest": true, "test": true,
        }],
    })
}

fn member(name: &str, dependencies: &[(&str, Value)]) -> Value {
    package(name, "0.1.0", None, Some("Apache-2.0"), dependencies)
}

fn foreign(name: &str, version: &str) -> Value {
    package(name, version, Some(REGISTRY), Some("MIT"), &[])
}

/// The workspace that keeps every rule.
fn good() -> Vec<Value> {
    vec![
        member("cellar", &[("kit", json!("dev"))]),
        member("kitchen", &[("cellar", Value::Null), ("knife", Value::Null)]),
        member("kit", &[("cellar", Value::Null)]),
        foreign("knife", "1.0.0"),
        foreign("oven", "1.9.0"),
        foreign("oven", "2.0.0"),
    ]
}

/// Members are the packages of the house that have no source.
fn metadata(packages: Vec<Value>) -> Metadata {
    let members: Vec<Value> = packages
        .iter()
        .filter(|package| package["source"].is_null() && package["name"] != "shed")
        .map(|package| package["id"].clone())
        .collect();
    let text = json!({
        "packages": packages, "workspace_members": members, "workspace_default_members": members, "resolve": null,
        "workspace_root": "/house", "target_directory": "/house/target", "version": 1, "metadata": null,
    });
    MetadataCommand::parse(text.to_string()).expect("made-up metadata has the form of real one")
}

#[test]
fn a_workspace_that_keeps_every_rule_passes() {
    assert_eq!(rules::complaints(&metadata(good()), &POLICY), Vec::<String>::new());
}

#[test]
fn each_broken_rule_is_reported_and_nothing_else() {
    let normal = || Value::Null;
    let table: &[(&str, Value, &str)] = &[
        (
            "a crate uses one that its row does not allow",
            member("cellar", &[("kitchen", normal())]),
            "cellar must know nothing of kitchen",
        ),
        ("also at build time", member("cellar", &[("kitchen", json!("build"))]), "cellar must know nothing of kitchen"),
        ("also in its tests", member("cellar", &[("kitchen", json!("dev"))]), "cellar must know nothing of kitchen"),
        ("the testkit outside tests", member("cellar", &[("kit", normal())]), "cellar must know nothing of kit"),
        ("a crate without a row", member("attic", &[]), "attic has no row in the table: say what it may use"),
        (
            "what is reserved",
            member("cellar", &[("knife", normal())]),
            "cellar must not use knife, which is for kitchen: it is sharp",
        ),
        ("what others may use", member("cellar", &[("ketchup", normal())]), "cellar must not use ketchup: guests may"),
        ("what is banned, through whomever", foreign("poison", "3.0.0"), "poison 3.0.0 is banned: it kills"),
        ("a large crate twice", foreign("oven", "0.9.0"), "oven is there twice: 0.9.0 beside 2.0.0"),
        (
            "git",
            package("fork", "1.0.0", Some("git+https://example.org/fork#1234"), Some("MIT"), &[]),
            "fork comes from git+https://example.org/fork#1234, not from the registry",
        ),
        ("no licence", package("orphan", "1.0.0", Some(REGISTRY), None, &[]), "orphan 1.0.0 states no licence"),
        (
            "a licence that is not allowed",
            package("viral", "1.0.0", Some(REGISTRY), Some("GPL-3.0-only"), &[]),
            "viral 1.0.0 is under GPL-3.0-only",
        ),
    ];
    for (what, broken, expected) in table {
        let mut packages = good();
        packages.retain(|package| package["name"] != broken["name"] || package["version"] != broken["version"]);
        packages.push(broken.clone());
        assert_eq!(rules::complaints(&metadata(packages), &POLICY), vec![(*expected).to_owned()], "{what}");
    }
}

#[test]
fn a_path_outside_the_workspace_is_reported() {
    let mut shed = package("shed", "0.1.0", None, Some("MIT"), &[]);
    shed["manifest_path"] = json!("/elsewhere/shed/Cargo.toml");
    let mut packages = good();
    packages.push(shed);
    assert_eq!(
        rules::complaints(&metadata(packages), &POLICY),
        ["shed lies outside the workspace: /elsewhere/shed/Cargo.toml"]
    );
}

#[test]
fn a_row_without_a_crate_is_reported() {
    let mut packages = good();
    packages.retain(|package| package["name"] != "kitchen");
    assert_eq!(
        rules::complaints(&metadata(packages), &POLICY),
        ["kitchen has a row in the table but is not in the workspace"]
    );
}

#[test]
fn a_table_that_leads_upstairs_is_reported() {
    const UPSTAIRS: Policy = Policy {
        rooms: &[
            Room { package: "cellar", floor: 0, may_use: &["kitchen", "pool"] },
            Room { package: "kitchen", floor: 1, may_use: &["cellar"] },
            Room { package: "kit", floor: 2, may_use: &["cellar"] },
        ],
        ..POLICY
    };
    assert_eq!(
        rules::complaints(&metadata(good()), &UPSTAIRS),
        [
            "the table lets cellar use kitchen, which stands on a higher floor",
            "the table lets cellar use pool, which has no row",
        ]
    );
}

#[test]
fn forbidding_unsafe_code_is_asked_of_all_but_one() {
    let metadata = metadata(good());
    let all_forbid = rules::unsafe_code(&metadata, &POLICY, |_| Ok("//! Doc.\n\n#![forbid(unsafe_code)]\n".to_owned()));
    assert_eq!(all_forbid, Vec::<String>::new());
    let none_forbids = rules::unsafe_code(&metadata, &POLICY, |_| Ok("// #![forbid(unsafe_code)]\n".to_owned()));
    assert_eq!(
        none_forbids,
        [
            "/house/kitchen/src/lib.rs does not have #![forbid(unsafe_code)]",
            "/house/kit/src/lib.rs does not have #![forbid(unsafe_code)]",
        ]
    );
}

#[test]
fn lints_of_the_workspace_are_asked_of_all() {
    let metadata = metadata(good());
    assert_eq!(
        rules::lints(&metadata, |_| Ok("[package]\n\n[lints]\nworkspace = true\n\n".to_owned())),
        Vec::<String>::new()
    );
    assert_eq!(rules::lints(&metadata, |_| Ok("[package]\n".to_owned())).len(), 3);
}

#[test]
fn licence_expressions_are_evaluated() {
    let table: &[(&str, bool)] = &[
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("MIT OR GPL-3.0-only", true),
        ("MIT AND GPL-3.0-only", false),
        ("MIT/Apache-2.0", true),
        ("GPL-2.0-only/Apache-2.0", true),
        ("(MIT OR GPL-3.0-only) AND Apache-2.0", true),
        ("(MIT AND GPL-3.0-only) OR MPL-2.0", false),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("MIT WITH LLVM-exception", false),
    ];
    for (expression, expected) in table {
        assert_eq!(rules::is_allowed(expression, POLICY.licences), Ok(*expected), "{expression}");
    }
    assert!(rules::is_allowed("do what you like", POLICY.licences).is_err());
}
