//! Child processes of runnables: environment, output, orderly stop, kill. Real processes and real time.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use polis_logtree::{DistinguishedName, ReadOptions};
use polis_supervisor::testing::Harness;
use polis_supervisor::{
    BoxError, Context, ExitStatus, MAX_LINE_LENGTH, NodeReport, OutputSink, Process, ProcessSpec, Signal, SpawnError,
    State, runnable,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};

const DEADLINE: Duration = Duration::from_secs(20);

type Lines = Arc<Mutex<Vec<String>>>;

fn shell(script: &str) -> ProcessSpec {
    ProcessSpec::new("/bin/sh").arguments(["-c", script])
}

fn into(lines: &Lines) -> OutputSink {
    let lines = Arc::clone(lines);
    OutputSink::lines(move |line| lines.lock().unwrap().push(line.into()))
}

/// Runs `test` once in a runnable of its own.
async fn in_runnable<F, Fut>(test: F) -> Harness
where
    F: FnOnce(Context) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    let (finished, wait) = oneshot::channel();
    let test = Mutex::new(Some((test, finished)));
    let harness = Harness::start(runnable(move |context: Context| {
        let test = test.lock().unwrap().take();
        async move {
            let (test, finished) = test.ok_or("the test has failed in its first life")?;
            test(context.clone()).await?;
            context.healthy();
            let _ = finished.send(());
            Err(context.cancelled().await.into())
        }
    }));
    if timeout(DEADLINE, wait).await.is_ok_and(|result| result.is_ok()) {
        return harness;
    }
    harness.finish().await;
    panic!("the test did not end within {DEADLINE:?}");
}

async fn status_of(context: &Context, spec: ProcessSpec) -> Result<ExitStatus, BoxError> {
    Ok(context.process(spec).await?.wait().await)
}

/// A handle to the process with this id, which is readable once it has ended, or `None` if it has.
fn handle(id: &str) -> Option<rustix::fd::OwnedFd> {
    pidfd_open(Pid::from_raw(id.parse().unwrap()).unwrap(), PidfdFlags::empty()).ok()
}

fn ends_within(handle: &rustix::fd::OwnedFd, deadline: Duration) -> bool {
    let deadline = Timespec::try_from(deadline).unwrap();
    poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&deadline)).unwrap() == 1
}

async fn next_line(lines: &mut mpsc::Receiver<String>) -> String {
    timeout(DEADLINE, lines.recv()).await.expect("a line in time").expect("a line")
}

/// A sink and the channel its lines come out of.
fn channel() -> (OutputSink, mpsc::Receiver<String>) {
    let (sender, receiver) = mpsc::channel(64);
    (OutputSink::lines(move |line| drop(sender.try_send(line.into()))), receiver)
}

#[tokio::test]
async fn the_environment_is_what_was_said_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let _inheritable = rustix::io::dup(std::fs::File::open(&path).unwrap()).unwrap();
    let expected_directory = path.display().to_string();
    let lines = Lines::default();
    let (sink, read) = (into(&lines), Arc::clone(&lines));
    let harness = in_runnable(move |context| async move {
        let mut spec = ProcessSpec::new("/usr/bin/env").variable("A", "1").variable("B", "two words");
        spec.standard_output = sink;
        assert!(status_of(&context, spec).await?.is_success());
        assert_eq!(*read.lock().unwrap(), ["A=1", "B=two words"]);
        read.lock().unwrap().clear();

        let script = "pwd; cat; echo end of input; exec ls /proc/self/fd";
        let mut spec = shell(script).variable("PATH", "/bin:/usr/bin");
        spec.working_directory = Some(path);
        spec.standard_output = into(&read);
        assert!(status_of(&context, spec).await?.is_success());
        // Of files it has the standard streams, and the directory that ls reads. One that may be inherited was open.
        assert_eq!(*read.lock().unwrap(), [expected_directory.as_str(), "end of input", "0", "1", "2", "3"]);
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn output_goes_to_the_log_under_the_name_of_the_runnable() {
    let harness = in_runnable(|context| async move {
        let status = status_of(&context, shell("echo out; echo err >&2; printf unfinished")).await?;
        assert!(status.is_success());
        Ok(())
    })
    .await;
    let root = DistinguishedName::parse("root").unwrap();
    let options = ReadOptions { only_raw: true, ..ReadOptions::default() };
    let reader = harness.log_tree().read(&root, options).unwrap();
    let mut lines: Vec<String> = reader.backlog.iter().map(|entry| entry.text().into_owned()).collect();
    lines.sort();
    assert_eq!(lines, ["err", "out", "unfinished"]);
    harness.finish().await;
}

#[tokio::test]
async fn lines_are_bounded_and_none_is_lost() {
    let lines = Lines::default();
    let (sink, read) = (into(&lines), lines);
    let harness = in_runnable(move |context| async move {
        let mut spec = shell(r"seq 20000; head -c 100000 /dev/zero | tr '\0' x; echo; printf 'last\377'")
            .variable("PATH", "/bin:/usr/bin");
        spec.standard_output = sink;
        assert!(status_of(&context, spec).await?.is_success());
        let lines = read.lock().unwrap();
        assert_eq!(lines.len(), 20_002);
        assert!(lines[..20_000].iter().enumerate().all(|(index, line)| *line == (index + 1).to_string()));
        assert_eq!(lines[20_000], "x".repeat(MAX_LINE_LENGTH));
        assert_eq!(lines[20_001], "last\u{fffd}");
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn how_a_process_ended_is_told_in_words() {
    let harness = in_runnable(|context| async move {
        for (script, words) in
            [("exit 7", "exit code 7"), ("kill -TERM $$", "ended by signal SIGTERM"), ("true", "exit code 0")]
        {
            assert_eq!(status_of(&context, shell(script)).await?.to_string(), words);
        }
        let process = context.process(shell("exit 3")).await?;
        let id = process.id();
        let error = process.supervise(&context).await.unwrap_err().to_string();
        assert_eq!(error, format!("/bin/sh (process {id}) ended by itself: exit code 3"));
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn what_cannot_be_started_is_told_with_its_cause() {
    let directory = tempfile::tempdir().unwrap();
    let (missing, text) = (directory.path().join("missing"), directory.path().join("text"));
    std::fs::write(&text, "no program").unwrap();
    let harness = in_runnable(|context| async move {
        let try_start = async |spec| context.process(spec).await.map(|process| process.id()).unwrap_err();
        let error = try_start(ProcessSpec::new("sh")).await;
        assert!(matches!(error, SpawnError::RelativeProgram { .. }), "{error}");
        let error = try_start(ProcessSpec::new(missing.clone())).await;
        assert!(matches!(&error, SpawnError::Execute { source, .. } if source.kind() == std::io::ErrorKind::NotFound));
        assert_eq!(error.to_string(), format!("cannot start {}", missing.display()));
        let error = try_start(ProcessSpec::new(text)).await;
        assert!(
            matches!(&error, SpawnError::Execute { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied)
        );
        let mut spec = shell("true");
        spec.working_directory = Some(missing.clone());
        let error = try_start(spec).await;
        assert!(matches!(&error, SpawnError::WorkingDirectory { directory, .. } if *directory == missing), "{error}");
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn an_orderly_stop_lets_the_process_end_by_itself() {
    let harness = in_runnable(|context| async move {
        for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT")] {
            let (sink, mut lines) = channel();
            let mut spec = shell(&format!("trap 'echo bye; exit 5' {name}; echo ready; while :; do sleep 0.05; done"))
                .variable("PATH", "/bin:/usr/bin");
            spec.stop_signal = signal;
            spec.standard_output = sink;
            let process = context.process(spec).await?;
            assert_eq!(next_line(&mut lines).await, "ready");
            assert_eq!(process.exit_status(), None);
            assert_eq!(process.stop().await, ExitStatus::Exited { code: 5 });
            assert_eq!(process.wait().await, ExitStatus::Exited { code: 5 });
            assert_eq!(next_line(&mut lines).await, "bye");
        }
        Ok(())
    })
    .await;
    harness.finish().await;
}

/// A process that ignores its stop signal, and has a child that does so too. It tells both ids.
fn stubborn() -> (ProcessSpec, mpsc::Receiver<String>) {
    let (sink, lines) = channel();
    let mut spec =
        shell("trap '' TERM; sleep 1000 & echo $$; echo $!; wait; sleep 1000").variable("PATH", "/bin:/usr/bin");
    spec.standard_output = sink;
    spec.stop_deadline = Duration::from_millis(300);
    (spec, lines)
}

#[tokio::test]
async fn a_process_that_ignores_its_stop_signal_is_killed_with_its_group() {
    let harness = in_runnable(|context| async move {
        let (spec, mut lines) = stubborn();
        let process = context.process(spec).await?;
        let (leader, child) = (next_line(&mut lines).await, next_line(&mut lines).await);
        assert_eq!(leader, process.id().to_string());
        let child = handle(&child).unwrap();
        let before = Instant::now();
        assert_eq!(process.stop().await, ExitStatus::KILLED);
        assert!(before.elapsed() >= Duration::from_millis(300), "{:?}", before.elapsed());
        assert!(ends_within(&child, DEADLINE), "the child of the process lives on");
        assert!(handle(&leader).is_none(), "the process was not reaped");
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn a_dropped_process_is_killed_with_its_group() {
    let harness = in_runnable(|context| async move {
        let (spec, mut lines) = stubborn();
        let process = context.process(spec).await?;
        let ids = [next_line(&mut lines).await, next_line(&mut lines).await];
        let handles = ids.map(|id| handle(&id).unwrap());
        drop(process);
        assert!(lines.recv().await.is_none());
        assert!(handles.iter().all(|handle| ends_within(handle, DEADLINE)));
        Ok(())
    })
    .await;
    harness.finish().await;
}

#[tokio::test]
async fn what_a_process_leaves_in_its_group_is_killed() {
    let harness = in_runnable(|context| async move {
        let (sink, mut lines) = channel();
        let mut spec = shell("sleep 1000 & echo $!; read -r line </dev/zero").variable("PATH", "/bin:/usr/bin");
        spec.standard_output = sink;
        let process = context.process(spec).await?;
        let child = handle(&next_line(&mut lines).await).unwrap();
        process.signal(Signal::KILL);
        assert_eq!(process.wait().await, ExitStatus::KILLED);
        assert!(ends_within(&child, DEADLINE), "what the process has left lives on");
        Ok(())
    })
    .await;
    harness.finish().await;
}

/// A runnable that owns a process in a death of some kind, and the path where each life notes its process.
async fn next_life_finds_no_process(
    die: impl Fn(Context, Process) -> Result<Process, BoxError> + Send + Sync + 'static,
) {
    let earlier: Arc<Mutex<Vec<u32>>> = Arc::default();
    let die = Arc::new(die);
    let owner = runnable(move |context: Context| {
        let (earlier, die) = (Arc::clone(&earlier), Arc::clone(&die));
        async move {
            let alive = |id: &u32| PathBuf::from(format!("/proc/{id}")).exists();
            assert!(!earlier.lock().unwrap().iter().any(alive), "the process of the earlier life is there");
            let (spec, mut lines) = stubborn();
            let process = context.process(spec).await?;
            next_line(&mut lines).await;
            earlier.lock().unwrap().push(process.id());
            let _process = die(context, process)?;
            std::future::pending().await
        }
    });
    let harness = Harness::start(runnable(move |context| {
        let owner = owner.clone();
        async move {
            context.run("owner", owner)?;
            context.healthy();
            Err(context.cancelled().await.into())
        }
    }));
    let twice = |dump: &[NodeReport]| dump.len() == 2 && dump[1].restarts == 2 && dump[1].state == State::New;
    let dump = timeout(DEADLINE, harness.observer().wait_until(twice)).await.unwrap();
    let error = dump[1].last_error.clone().unwrap_or_default();
    assert!(error.contains("on purpose"), "{error}");
    // What runs now is deaf to its cancellation, and must be killed all the same.
    let _ = tokio::spawn(harness.finish()).await;
}

#[tokio::test]
async fn a_process_ends_with_its_runnable_before_the_next_life() {
    next_life_finds_no_process(|_, _| Err("dies on purpose".into())).await;
    next_life_finds_no_process(|_, _| panic!("on purpose")).await;
    next_life_finds_no_process(|context, process| {
        context.spawn(async { Err("a task ends it on purpose".into()) });
        Ok(process)
    })
    .await;
}

#[tokio::test]
async fn a_panic_of_a_line_function_is_the_death_of_the_runnable() {
    let root = runnable(|context| async move {
        let mut spec = shell("echo hello; sleep 1000").variable("PATH", "/bin:/usr/bin");
        spec.standard_output = OutputSink::lines(|line| panic!("cannot take {line}"));
        context.process(spec).await?.supervise(&context).await
    });
    let harness = Harness::start(root);
    let dump = timeout(DEADLINE, harness.observer().wait_until(|dump| dump[0].restarts == 1)).await.unwrap();
    assert!(dump[0].last_error.as_deref().unwrap().ends_with(": cannot take hello"), "{:?}", dump[0].last_error);
    let end = tokio::spawn(harness.finish()).await;
    assert!(end.is_err(), "the harness overlooks that the root died");
}

#[tokio::test]
async fn a_supervised_process_is_stopped_when_its_runnable_is_cancelled() {
    let (sink, mut lines) = channel();
    let sink = Mutex::new(Some(sink));
    let root = runnable(move |context: Context| {
        let sink = sink.lock().unwrap().take();
        async move {
            let mut spec = shell("trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.05; done")
                .variable("PATH", "/bin:/usr/bin");
            spec.standard_output = sink.ok_or("a second life")?;
            let process = context.process(spec).await?;
            context.healthy();
            process.supervise(&context).await
        }
    });
    let harness = Harness::start(root);
    assert_eq!(next_line(&mut lines).await, "ready");
    harness.finish().await;
    assert_eq!(next_line(&mut lines).await, "bye");
    assert!(lines.recv().await.is_none());
}
