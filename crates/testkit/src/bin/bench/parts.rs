//! Parts of Polis that are measured by themselves. Each has an example in its crate that measures it and prints lines of
//! `name key=value ...`.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use crate::BenchError;
use crate::arguments::Arguments;
use crate::machine::{Clock, Load};
use crate::place::Place;
use crate::report::{Figure, Report, Target, Unit};

/// Most runs of an example: each measures thousands of the same.
const RUNS: u32 = 10;

/// Entries that each of the four writers of the log writes in each case.
const LOG_ENTRIES: &str = "100000";

/// Entries of the log a second of processor time, at least.
const LOG_RATE: f64 = 1e6;

/// Most memory of the process that writes the log, in MiB: the tree's limit of 32 MiB for what it keeps, and the program.
const LOG_MEMORY: f64 = 40.0;

/// One line of an example.
#[derive(Debug)]
struct Line {
    name: String,
    values: BTreeMap<String, String>,
}

/// Starts ten thousand runnables and kills one in a group.
pub(crate) fn runnables(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let (mut starts, mut restarts, mut others) = (Vec::new(), Vec::new(), Vec::new());
    let mut load = Load::default();
    for _ in 0..arguments.runs.min(RUNS) {
        let lines = run(place, "scale", &[], &mut load)?;
        starts.push(find(&lines, "supervisor-start")?.number("seconds")? * 1e3);
        let restart = find(&lines, "supervisor-group-restart")?;
        restarts.push(restart.number("delay_over_backoff_ms")?);
        others.push(restart.number("others_restarted")?);
    }
    let mut add = |name: &str, unit, values, target| {
        report.add(Figure {
            name: name.into(),
            unit,
            values,
            target: Some(target),
            beside: Vec::new(),
            others: load.share(),
        });
    };
    add("start of 10,000 runnables", Unit::Milliseconds, starts, Target::AtMost(1000.0));
    add("restart of a group, beyond its backoff", Unit::Milliseconds, restarts, Target::AtMost(50.0));
    add("runnables restarted outside of that group", Unit::Count, others, Target::AtMost(0.0));
    Ok(())
}

/// Fills the log tree from four writers, in each way there is, without a reader and with slow and fast ones.
pub(crate) fn log(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let mut rates: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut memory = Vec::new();
    let mut load = Load::default();
    for _ in 0..arguments.runs.min(RUNS) {
        let lines = run(place, "throughput", &[LOG_ENTRIES], &mut load)?;
        let mut highest: f64 = 0.0;
        for line in lines.iter().filter(|line| line.name == "logtree-throughput") {
            let reader = match (line.is("slow_reader", "true"), line.is("fast_reader", "true")) {
                (true, _) => "slow reader",
                (_, true) => "fast reader",
                (false, false) => "no reader",
            };
            let way = line.values.get("via").ok_or("a case of the log has no name")?;
            let rate = line.number("entries_per_cpu_second")?;
            rates.entry(format!("log entries per CPU second: {way}, {reader}")).or_default().push(rate);
            highest = highest.max(line.number("rss_mib")?);
        }
        memory.push(highest);
    }
    let mut add = |name, unit, values, target| {
        report.add(Figure { name, unit, values, target: Some(target), beside: Vec::new(), others: load.share() });
    };
    for (name, values) in rates {
        add(name, Unit::Count, values, Target::AtLeast(LOG_RATE));
    }
    add("highest memory of these processes".into(), Unit::Mebibytes, memory, Target::AtMost(LOG_MEMORY));
    Ok(())
}

/// Runs an example to its end.
fn run(place: &Place, example: &str, arguments: &[&str], load: &mut Load) -> Result<Vec<Line>, BenchError> {
    let program = place.binaries.join("examples").join(example);
    let clock = Clock::now(&place.directory)?;
    let output = Command::new(&program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}; run scripts/bench, which builds it", program.display()))?;
    *load += clock.load()?;
    if !output.status.success() {
        // What it has measured comes first, and then says more than this error.
        eprintln!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.lines().filter_map(Line::parse).collect())
}

fn find<'a>(lines: &'a [Line], name: &str) -> Result<&'a Line, BenchError> {
    lines.iter().find(|line| line.name == name).ok_or_else(|| format!("the example printed no line {name}").into())
}

impl Line {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next()?.to_owned();
        let values =
            words.filter_map(|word| word.split_once('=')).map(|(key, value)| (key.to_owned(), value.to_owned()));
        Some(Self { name, values: values.collect() })
    }

    fn number(&self, key: &str) -> Result<f64, BenchError> {
        let value = self.values.get(key).ok_or_else(|| format!("the line {} has no {key}", self.name))?;
        Ok(value.parse()?)
    }

    fn is(&self, key: &str, value: &str) -> bool {
        self.values.get(key).is_some_and(|found| found == value)
    }
}
