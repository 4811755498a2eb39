//! The checker: pure functions from what `cargo metadata` says, and what source files hold, to a list of complaints.

use std::collections::BTreeSet;

use cargo_metadata::{DependencyKind, Metadata, Package, TargetKind};

use crate::policy::{Policy, Room};

/// Everything that is wrong with the packages, one sentence each; empty when all is well.
pub(crate) fn complaints(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = table(policy);
    complaints.extend(rooms(metadata, policy));
    complaints.extend(reserved(metadata, policy));
    complaints.extend(banned(metadata, policy));
    complaints.extend(one_version(metadata, policy));
    complaints.extend(sources(metadata, policy));
    complaints.extend(licences(metadata, policy));
    complaints
}

/// The table of rooms must hold together itself: nothing uses a higher floor, and only what has a row.
fn table(policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for room in policy.rooms {
        for name in room.may_use {
            match find_room(policy, name) {
                None => complaints.push(format!("the table lets {} use {name}, which has no row", room.package)),
                Some(used) if used.floor > room.floor => {
                    complaints
                        .push(format!("the table lets {} use {name}, which stands on a higher floor", room.package));
                }
                Some(_) => {}
            }
        }
    }
    complaints
}

/// Each crate of the workspace names only those that its row allows.
fn rooms(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let members: Vec<&Package> = metadata.workspace_packages();
    let names: BTreeSet<&str> = members.iter().map(|package| package.name.as_str()).collect();
    let mut complaints: Vec<String> = policy
        .rooms
        .iter()
        .filter(|room| !names.contains(room.package))
        .map(|room| format!("{} has a row in the table but is not in the workspace", room.package))
        .collect();
    for package in members {
        let Some(room) = find_room(policy, &package.name) else {
            complaints.push(format!("{} has no row in the table: say what it may use", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            let for_tests = dependency.kind == DependencyKind::Development && name == policy.testkit;
            if names.contains(name) && !for_tests && !room.may_use.contains(&name) {
                complaints.push(format!("{} must know nothing of {name}", package.name));
            }
        }
    }
    complaints
}

fn reserved(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata.workspace_packages() {
        for reserved in policy.reserved {
            let uses = package.dependencies.iter().any(|dependency| dependency.name == reserved.package);
            if uses && !reserved.for_packages.contains(&package.name.as_str()) {
                complaints.push(format!(
                    "{} must not use {}, which is for {}: {}",
                    package.name,
                    reserved.package,
                    reserved.for_packages.join(", "),
                    reserved.reason
                ));
            }
        }
        for ban in policy.not_ours {
            if package.dependencies.iter().any(|dependency| dependency.name == ban.package) {
                complaints.push(format!("{} must not use {}: {}", package.name, ban.package, ban.reason));
            }
        }
    }
    complaints
}

fn banned(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for ban in policy.banned {
        for package in metadata.packages.iter().filter(|package| package.name == ban.package) {
            complaints.push(format!("{} {} is banned: {}", package.name, package.version, ban.reason));
        }
    }
    complaints
}

/// Large crates twice are twice the time to compile, and types that do not fit each other.
fn one_version(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for rule in policy.one_version {
        let mut versions: Vec<_> = metadata
            .packages
            .iter()
            .filter(|package| package.name == rule.package)
            .map(|package| &package.version)
            .collect();
        versions.sort();
        let Some((newest, older)) = versions.split_last() else { continue };
        for version in older {
            let text = version.to_string();
            if !rule.also.iter().any(|beginning| text.starts_with(beginning)) {
                complaints.push(format!("{} is there twice: {text} beside {newest}", rule.package));
            }
        }
    }
    complaints
}

/// Everything comes from the registry, except the workspace itself.
fn sources(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in &metadata.packages {
        match &package.source {
            None if package.manifest_path.starts_with(&metadata.workspace_root) => {}
            None => complaints.push(format!("{} lies outside the workspace: {}", package.name, package.manifest_path)),
            Some(source) if source.repr == policy.registry => {}
            Some(source) => complaints.push(format!("{} comes from {source}, not from the registry", package.name)),
        }
    }
    complaints
}

fn licences(metadata: &Metadata, policy: &Policy) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in &metadata.packages {
        match &package.license {
            None => complaints.push(format!("{} {} states no licence", package.name, package.version)),
            Some(text) => match is_allowed(text, policy.licences) {
                Ok(true) => {}
                Ok(false) => complaints.push(format!("{} {} is under {text}", package.name, package.version)),
                Err(reason) => {
                    complaints
                        .push(format!("{} {} states the licence {text:?}: {reason}", package.name, package.version));
                }
            },
        }
    }
    complaints
}

/// Whether a licence expression can be met with the allowed licences alone. The old form "A/B", still found on the registry,
/// means OR.
pub(crate) fn is_allowed(expression: &str, allowed: &[&str]) -> Result<bool, String> {
    let expression =
        spdx::Expression::parse_mode(expression, spdx::ParseMode::LAX).map_err(|error| error.reason.to_string())?;
    Ok(expression.evaluate(|requirement| allowed.contains(&requirement.to_string().as_str())))
}

/// Complaints about the root file of each library and program: unsafe code is forbidden in all crates but one.
/// `read` gives the text of a file.
pub(crate) fn unsafe_code(
    metadata: &Metadata,
    policy: &Policy,
    read: impl Fn(&std::path::Path) -> std::io::Result<String>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata.workspace_packages() {
        if package.name == policy.unsafe_code_in {
            continue;
        }
        for target in &package.targets {
            let ships = target.kind.iter().any(|kind| matches!(kind, TargetKind::Lib | TargetKind::Bin));
            if !ships {
                continue;
            }
            match read(target.src_path.as_std_path()) {
                Ok(text) if text.lines().any(|line| line.trim() == "#![forbid(unsafe_code)]") => {}
                Ok(_) => complaints.push(format!("{} does not have #![forbid(unsafe_code)]", target.src_path)),
                Err(error) => complaints.push(format!("{} cannot be read: {error}", target.src_path)),
            }
        }
    }
    complaints
}

/// Complaints about manifests that do not take the lints of the workspace.
pub(crate) fn lints(metadata: &Metadata, read: impl Fn(&std::path::Path) -> std::io::Result<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in metadata.workspace_packages() {
        match read(package.manifest_path.as_std_path()) {
            Ok(text) if text.contains("\n[lints]\nworkspace = true\n") => {}
            Ok(_) => complaints.push(format!("{} does not have [lints] workspace = true", package.manifest_path)),
            Err(error) => complaints.push(format!("{} cannot be read: {error}", package.manifest_path)),
        }
    }
    complaints
}

fn find_room<'a>(policy: &'a Policy, package: &str) -> Option<&'a Room> {
    policy.rooms.iter().find(|room| room.package == package)
}
