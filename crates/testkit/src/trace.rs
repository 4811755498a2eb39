//! System call traces, and the rule that they are checked for: nothing becomes durable without a fault point on either side.
//!
//! A node is traced by strace while its fault points go to a log file. A point is one `write` to that file, so the trace shows
//! points and system calls of each thread in their order.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;

/// System calls that make something durable, or change which file has a name that is to last.
const DURABLE: [&str; 13] = [
    "rename",
    "renameat",
    "renameat2",
    "fsync",
    "fdatasync",
    "sync",
    "syncfs",
    "sync_file_range",
    "msync",
    "link",
    "linkat",
    "truncate",
    "ftruncate",
];

/// Where a call may stand: between these steps of one site (`polis_storage::durable` has the same table).
const GAPS: [(&str, &[(&str, &str)]); 4] = [
    ("fsync", SYNC_GAPS),
    ("fdatasync", SYNC_GAPS),
    ("renameat", &[("synced", "renamed")]),
    ("renameat2", &[("synced", "renamed")]),
];

/// Between which steps a file or a directory is synced: a new file, once more under its name, then the directory of what was
/// renamed, made, removed, or settled. What is set aside is renamed and done.
const SYNC_GAPS: &[(&str, &str)] = &[
    ("created", "synced"),
    ("renamed", "named"),
    ("named", "done"),
    ("renamed", "done"),
    ("created", "done"),
    ("removed", "done"),
    ("begin", "done"),
];

/// The command that runs `program` under strace and writes the trace to `trace`; add arguments and environment to it. Started
/// by [`crate::processes::spawn`] it is the program itself, with the program's process id: strace stands aside (`-D`). Children
/// are let go when they become another program (`-b execve`): etcd's writes are its own business.
#[must_use]
pub fn traced(program: &Path, trace: &Path) -> Command {
    let mut command = crate::processes::bound_to_test(Path::new("strace"));
    let calls = format!("trace=write,{}", DURABLE.join(","));
    command.args(["-D", "-f", "-b", "execve", "-y", "-qq", "-s", "256", "-e", "signal=none", "-e", &calls, "-o"]);
    command.arg(trace).arg(program);
    command
}

/// One thing that a thread did.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    /// It passed this point.
    Point(String),
    /// It made this system call.
    Call(String),
}

/// What a trace has shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Points that were passed.
    pub points: usize,
    /// System calls that made something durable.
    pub calls: usize,
    /// Violations of the rule, one sentence each.
    pub complaints: Vec<String>,
}

/// Checks a trace: every call that makes something last stands directly between two points of the same site and thread, in the
/// gap where it belongs. `log` is the file to which the points went.
#[must_use]
pub fn check(trace: &str, log: &Path) -> Findings {
    let mut threads: HashMap<&str, Vec<Event>> = HashMap::new();
    let mut order = Vec::new();
    for line in trace.lines() {
        if let Some((thread, event)) = parse(line, log) {
            if !threads.contains_key(thread) {
                order.push(thread);
            }
            threads.entry(thread).or_default().push(event);
        }
    }
    let mut findings = Findings::default();
    for thread in order {
        check_thread(thread, &threads[thread], &mut findings);
    }
    findings
}

fn check_thread(thread: &str, events: &[Event], findings: &mut Findings) {
    for (index, event) in events.iter().enumerate() {
        let call = match event {
            Event::Point(_) => {
                findings.points += 1;
                continue;
            }
            Event::Call(call) => call,
        };
        findings.calls += 1;
        let point = |neighbour: Option<&Event>| match neighbour {
            Some(Event::Point(point)) => Some(split(point)),
            Some(Event::Call(_)) | None => None,
        };
        // A file is settled with its directory: two syncs, between which a kill leaves nothing that it does not leave before them.
        let syncs = |events: &mut dyn Iterator<Item = &Event>| {
            if is_sync(event) { events.take_while(|event| is_sync(event)).count() } else { 0 }
        };
        let (earlier, later) = (syncs(&mut events[..index].iter().rev()), syncs(&mut events[index + 1..].iter()));
        let before = point(index.checked_sub(earlier + 1).and_then(|index| events.get(index)));
        let after = point(events.get(index + later + 1));
        let complaint = match (before, after) {
            (Some((site, from)), Some((same, to))) if site == same => {
                let is_settled = (&*from, &*to) == ("begin", "done");
                if may_stand(call, &from, &to) && (earlier + later == 0 || is_settled) {
                    continue;
                }
                format!("does not belong between {site}/{from} and {site}/{to}")
            }
            (Some((before, _)), Some((after, _))) => {
                format!("stands between the points of two sites, {before} and {after}")
            }
            (None, _) => "has no point before it".to_owned(),
            (Some((before, _)), None) => format!("has no point of {before} after it"),
        };
        findings.complaints.push(format!("thread {thread}: {call} {complaint}"));
    }
}

fn is_sync(event: &Event) -> bool {
    match event {
        Event::Call(call) => call.starts_with("fsync("),
        Event::Point(_) => false,
    }
}

/// Whether this call, as strace shows it, belongs between these steps.
fn may_stand(call: &str, from: &str, to: &str) -> bool {
    let name = call.split('(').next().unwrap_or_default();
    GAPS.iter().any(|(known, gaps)| *known == name && gaps.contains(&(from, to)))
}

/// The site and the step in the name of a point.
fn split(point: &str) -> (String, String) {
    let (site, step) = point.rsplit_once('/').unwrap_or((point, ""));
    (site.to_owned(), step.to_owned())
}

/// What one line of a trace says, if it is of interest. A call that strace shows in two parts counts where it begins.
fn parse<'a>(line: &'a str, log: &Path) -> Option<(&'a str, Event)> {
    let (thread, rest) = line.split_once(' ')?;
    let call = rest.trim_start();
    let (name, arguments) = call.split_once('(')?;
    if name == "write" {
        let (file, text) = arguments.split_once('>')?;
        let (_, path) = file.split_once('<')?;
        if Path::new(path) != log {
            return None;
        }
        let point = text.split('"').nth(1)?.strip_suffix("\\n")?;
        return Some((thread, Event::Point(point.to_owned())));
    }
    DURABLE.contains(&name).then(|| (thread, Event::Call(call.trim_end().to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "/t/faults";

    fn complaints(trace: &str) -> Vec<String> {
        check(trace, Path::new(LOG)).complaints
    }

    /// A durable write of one file by thread 11, while thread 12 makes a directory.
    const GOOD: &str = "\
11 openat(AT_FDCWD</t>, \"/t/faults\", O_WRONLY) = 9</t/faults>
11 write(9</t/faults>, \"a/b/begin\\n\", 10) = 10
12 write(9</t/faults>, \"c/begin\\n\", 8 <unfinished ...>
11 write(7</t/r/.f.polis-tmp>, \"fsync(1)\", 8) = 8
11 write(9</t/faults>, \"a/b/created\\n\", 12) = 12
12 <... write resumed>)              = 8
11 fsync(7</t/r/.f.polis-tmp> <unfinished ...>
12 write(9</t/faults>, \"c/created\\n\", 10) = 10
12 fsync(8</t>) = 0
12 write(9</t/faults>, \"c/done\\n\", 7) = 7
11 <... fsync resumed>)              = 0
11 write(9</t/faults>, \"a/b/synced\\n\", 11) = 11
11 renameat(7</t/r>, \".f.polis-tmp\", 7</t/r>, \"f\") = 0
11 write(9</t/faults>, \"a/b/renamed\\n\", 12) = 12
11 fsync(7</t/r>) = 0
11 write(9</t/faults>, \"a/b/done\\n\", 9) = 9
";

    #[test]
    fn calls_between_points_are_in_order() {
        assert_eq!(check(GOOD, Path::new(LOG)), Findings { points: 8, calls: 4, complaints: Vec::new() });
    }

    #[test]
    fn each_point_that_is_missing_is_noticed() {
        // Without `c/created` the directory looks like one that is settled; the table of points tells the two apart.
        let needed = ["a/b/created", "a/b/synced", "a/b/renamed", "a/b/done", "c/done"];
        for point in needed {
            let quoted = format!("\"{point}\\n\"");
            let trace: String =
                GOOD.lines().filter(|line| !line.contains(&quoted)).map(|line| format!("{line}\n")).collect();
            assert!(trace.len() < GOOD.len() && !complaints(&trace).is_empty(), "{point}");
        }
    }

    #[test]
    fn a_call_in_the_gap_of_another_step_is_noticed() {
        for (from, to) in [("11 renameat(", "11 fsync("), ("12 fsync(", "12 renameat("), ("12 fsync(", "12 sync(")] {
            let trace = GOOD.replacen(from, to, 1);
            assert!(trace != GOOD && complaints(&trace).len() == 1, "{from}: {:?}", complaints(&trace));
        }
    }

    #[test]
    fn a_file_and_its_directory_are_settled_together_and_nothing_else_is() {
        let trace = |from: &str, second: &str, to: &str| {
            let point = |step: &str| format!("3 write(9</t/faults>, \"s/load/{step}\\n\", 13) = 13\n");
            format!("{}3 fsync(7</t/r/f>) = 0\n3 {second} = 0\n{}", point(from), point(to))
        };
        assert_eq!(complaints(&trace("begin", "fsync(8</t/r>)", "done")), Vec::<String>::new());
        assert_eq!(complaints(&trace("renamed", "fsync(8</t/r>)", "done")).len(), 2);
        assert_eq!(complaints(&trace("begin", "renameat(8</t>, \"f\", 8</t>, \"g\")", "done")).len(), 2);
    }

    #[test]
    fn points_of_another_thread_site_or_file_do_not_count() {
        for (from, to) in
            [("12 fsync", "13 fsync"), ("\"c/done", "\"d/done"), ("9</t/faults>, \"c/d", "9</t/other>, \"c/d")]
        {
            let trace = GOOD.replacen(from, to, 1);
            assert!(trace != GOOD && complaints(&trace).len() == 1, "{from}: {:?}", complaints(&trace));
        }
    }

    #[test]
    fn a_call_without_any_point_is_noticed() {
        assert_eq!(
            complaints("5 fdatasync(3</t/x>) = 0\n"),
            ["thread 5: fdatasync(3</t/x>) = 0 has no point before it"]
        );
    }
}
