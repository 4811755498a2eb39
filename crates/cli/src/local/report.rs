//! `polis node report`.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;

use jiff::Timestamp;
use polis_control::{Bundle, Client, ClientError, FileEntry};

use super::arguments::ReportArguments;
use super::{AskFailure, within_timeout};
use crate::atomic_file::{self, Existing};
use crate::failure::Failure;
use crate::node_status::{read_last_state, runtime};
use crate::shell;
use crate::view::{print, safe, safe_json};

/// Most files that are listed. A node has some twenty, and etcd some ten; more are somebody else's.
const MAX_FILES: usize = 2000;

/// Deepest directory that is looked into; those of a node are four deep.
const MAX_DEPTH: usize = 8;

/// Mode of the file: there is no secret in it, but who may see it is for its owner to say.
const MODE: u32 = 0o600;

pub(super) fn run(arguments: &ReportArguments) -> Result<ExitCode, Failure> {
    let ReportArguments { root, output } = arguments;
    if !root.is_dir() {
        return Err(Failure::failed(format!("there is no node at {}", root.display()))
            .because_of("there is no such directory")
            .hint("check the path after --root"));
    }
    let bundle = collect(root)?;
    let text = bundle.to_json().map_err(|error| Failure::failed("the report has no JSON form").because(&error))?;
    if output.as_os_str() == "-" {
        print(&safe_json(&text))?;
        return Ok(ExitCode::SUCCESS);
    }
    atomic_file::write(output, text.as_bytes(), MODE, Existing::Keep).map_err(|error| {
        let failure = Failure::failed(format!("the report could not be written to {}", output.display()));
        if error.kind() == io::ErrorKind::AlreadyExists {
            failure.because_of("there is such a file already").hint("give another name after -o")
        } else {
            failure.because(&error)
        }
    })?;
    print(&safe(&done(&bundle, output)))?;
    Ok(ExitCode::SUCCESS)
}

fn collect(root: &Path) -> Result<Bundle, Failure> {
    let mut problems = Vec::new();
    let answer = runtime()?.block_on(within_timeout(Client::report(root)));
    let (running, report) = match answer {
        Ok(report) => (true, Some(report)),
        Err(AskFailure::Client(ClientError::NotRunning { .. })) => (false, None),
        Err(AskFailure::Client(error)) => {
            problems.push(chain(&error));
            (true, None)
        }
        Err(AskFailure::TimedOut) => {
            problems.push("the node listens on its control socket, but did not answer".into());
            (true, None)
        }
    };
    let last_state = read_last_state(root).unwrap_or_else(|error| {
        problems.push(chain(&error));
        None
    });
    let mut files = Vec::new();
    list(root, root, 0, &mut files, &mut problems);
    Ok(Bundle {
        format: Bundle::FORMAT.into(),
        version: Bundle::VERSION,
        made: Timestamp::now(),
        polis_version: polis_version::text().into(),
        root: root.display().to_string(),
        running,
        report,
        last_state,
        files,
        problems,
    })
}

/// Lists what is below `directory`: names and sizes. Nothing is opened but directories, and no link is followed.
fn list(root: &Path, directory: &Path, depth: usize, files: &mut Vec<FileEntry>, problems: &mut Vec<String>) {
    let mut paths: Vec<_> = match fs::read_dir(directory) {
        Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
        Err(error) => {
            problems.push(format!("{} could not be listed: {error}", directory.display()));
            return;
        }
    };
    paths.sort();
    for path in paths {
        if files.len() == MAX_FILES {
            problems.push(format!("there are more than {MAX_FILES} files; the rest is not listed"));
            return;
        }
        let Ok(data) = fs::symlink_metadata(&path) else { continue };
        let kind = if data.is_file() {
            "file"
        } else if data.is_dir() {
            "directory"
        } else {
            "other"
        };
        files.push(FileEntry {
            path: path.strip_prefix(root).unwrap_or(&path).display().to_string(),
            kind: kind.into(),
            bytes: data.is_file().then_some(data.len()),
            mode: format!("{:04o}", data.permissions().mode() & 0o7777),
            modified: data.modified().ok().and_then(|time| Timestamp::try_from(time).ok()),
        });
        if data.is_dir() && depth < MAX_DEPTH && files.len() < MAX_FILES {
            list(root, &path, depth + 1, files, problems);
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn done(bundle: &Bundle, output: &Path) -> String {
    let mut text = format!("Written to {}. ", shell::quote(output));
    text.push_str(match (bundle.running, &bundle.report, &bundle.last_state) {
        (true, Some(_), _) => "The node runs, and all that it tells is in it.\n",
        (true, None, _) => "The node runs, but did not answer; what else could be seen is in it.\n",
        (false, _, Some(_)) => "No node runs there; what it wrote down last is in it.\n",
        (false, _, None) => "No node runs there, and none has written anything down; the list of files is in it.\n",
    });
    for problem in &bundle.problems {
        text.push_str(&format!("Not in it: {problem}\n"));
    }
    text.push_str("Whatever has the form of a key was taken out; look through it all the same before you send it.\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_run_tells_what_is_on_its_disk_and_no_secret() {
        let root = tempfile::tempdir().unwrap();
        let key = "c0".repeat(32);
        let state = format!(
            r#"{{"version":1,"status":{{"state":"Failed","reason":"key {key}","phase":"enrolled","roles":[],"conditions":[],"running":false}}}}"#
        );
        fs::write(root.path().join("last_state.json"), state).unwrap();
        fs::create_dir_all(root.path().join("data/node")).unwrap();
        fs::write(root.path().join("data/node/credentials"), &key).unwrap();

        let bundle = collect(root.path()).unwrap();
        assert!(!bundle.running && bundle.report.is_none());
        assert!(bundle.problems.is_empty(), "{:?}", bundle.problems);
        let paths: Vec<&str> = bundle.files.iter().map(|file| &*file.path).collect();
        assert_eq!(paths, ["data", "data/node", "data/node/credentials", "last_state.json"]);
        assert_eq!(bundle.files[2].bytes, Some(64));

        let output = root.path().join("report.json");
        let arguments = ReportArguments { root: root.path().to_owned(), output: output.clone() };
        run(&arguments).unwrap();
        let text = fs::read_to_string(&output).unwrap();
        assert!(!text.contains(&key) && text.contains("key <redacted: hexadecimal digits>"), "{text}");
        let error = format!("{:?}", run(&arguments).unwrap_err());
        assert!(error.contains("there is such a file already"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_and_no_end() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("last_state.json"), "torn").unwrap();
        let bundle = collect(root.path()).unwrap();
        assert!(bundle.problems[0].contains("is damaged"), "{:?}", bundle.problems);
        let text = done(&bundle, Path::new("r.json"));
        assert!(text.contains("none has written anything down") && text.contains("Not in it: "), "{text}");
    }

    #[test]
    fn a_wrong_root_is_named() {
        let arguments = ReportArguments { root: "/nowhere/at/all".into(), output: "-".into() };
        assert!(format!("{:?}", run(&arguments).unwrap_err()).contains("there is no such directory"));
    }
}
