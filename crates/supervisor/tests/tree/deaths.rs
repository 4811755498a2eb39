//! What a runnable may die of, and that each death is its own and is told.

use std::sync::Mutex;

use polis_supervisor::testing::Harness;
use polis_supervisor::{BoxError, Context, SharedRunnable, StartError, State, runnable};
use tokio::sync::oneshot;

use crate::{DEADLINE, fatal_lines, find, good, mortal, panic_text, restarts, root, until};

/// What a runnable may do to itself, and what it is then said to have died of.
fn deaths() -> Vec<(&'static str, SharedRunnable, &'static str)> {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    vec![
        ("future", runnable(|_| async { panic!("in the future") }), "in the future"),
        (
            "construction",
            runnable(|context| {
                if !context.is_cancelled() {
                    panic!("in the making");
                }
                async { Ok(()) }
            }),
            "in the making",
        ),
        (
            "task",
            runnable(|context| async move {
                context.spawn(async { panic!("in a task") });
                std::future::pending().await
            }),
            "in a task",
        ),
        (
            "blocking",
            runnable(|context| async move { context.blocking(|| panic!("in a closure")).await }),
            "in a closure",
        ),
        (
            "blocking-not-awaited",
            runnable(|context| async move {
                let closure = context.blocking(|| panic!("in a closure"));
                let both = futures::future::join(closure, std::future::pending::<()>());
                both.await;
                Ok(())
            }),
            "in a closure",
        ),
        (
            "destructor",
            runnable(|context| async move {
                let _bomb = PanicsWhenDropped;
                context.spawn(async { Err("a task ends it".into()) });
                std::future::pending().await
            }),
            "a task ends it",
        ),
        (
            "task-error",
            runnable(|context| async move {
                context.spawn(async { Err(Box::new(std::io::Error::other("a task's error")) as BoxError) });
                std::future::pending().await
            }),
            "a task's error",
        ),
        (
            "ok-without-done",
            runnable(|context| async move {
                context.healthy();
                Ok(())
            }),
            "returned without having signalled Done",
        ),
        (
            "healthy-twice",
            runnable(|context| async move {
                context.healthy();
                context.healthy();
                Err(context.cancelled().await.into())
            }),
            "signalled Healthy while healthy",
        ),
        (
            "done-too-early",
            runnable(|context| async move {
                context.done();
                context.healthy();
                Ok(())
            }),
            "signalled Done while new",
        ),
        (
            "child-too-late",
            runnable(|context| async move {
                context.healthy();
                context.run("child", good())?;
                Ok(())
            }),
            "may start children only while it is new",
        ),
        (
            "bad-name",
            runnable(|context| async move {
                context.run("/dev/tty0", good())?;
                Ok(())
            }),
            "the name \"/dev/tty0\" under root.bad-name is not allowed",
        ),
    ]
}

#[tokio::test(start_paused = true)]
async fn every_death_is_its_own_and_is_told() {
    for (name, runnable, error) in deaths() {
        let harness = Harness::start(root(vec![vec![(name, runnable)], vec![("other", good())]]));
        let path = format!("root.{name}");
        let dump = until(harness.observer(), |dump| restarts(dump, &path) >= 2).await;
        let last_error = find(&dump, &path).unwrap().last_error.clone().unwrap();
        assert!(last_error.contains(error), "{name}: {last_error}");
        if error.starts_with("in ") {
            assert!(
                last_error.starts_with("panicked at crates/supervisor/tests/tree/deaths.rs:"),
                "{name}: {last_error}"
            );
        }
        let lines = fatal_lines(&harness, &path);
        assert!(lines.len() >= 2 && lines.iter().all(|line| line.contains(error)), "{name}: {lines:?}");
        assert_eq!(restarts(&dump, "root.other"), 0, "{name}");
        assert_eq!(restarts(&dump, "root"), 0, "{name}");
        harness.finish().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_while_a_cancelled_future_is_dropped_is_told() {
    struct PanicsWhenDropped;
    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("in a destructor");
        }
    }
    let stubborn = runnable(|context| async move {
        let _bomb = PanicsWhenDropped;
        context.healthy();
        std::future::pending().await
    });
    let (one, kill) = mortal();
    let harness = Harness::start(root(vec![vec![("one", one), ("stubborn", stubborn)]]));
    harness.wait_for("root.stubborn", State::Healthy, DEADLINE).await;
    kill.send(()).await.unwrap();
    let dump = until(harness.observer(), |dump| restarts(dump, "root.stubborn") == 1).await;
    let last_error = find(&dump, "root.stubborn").unwrap().last_error.clone().unwrap();
    assert!(last_error.ends_with("in a destructor, while its future was dropped"), "{last_error}");
    let end = tokio::spawn(harness.finish()).await.unwrap_err();
    assert!(panic_text(end).contains("had to be aborted"));
}

#[tokio::test(start_paused = true)]
async fn a_foreign_context_is_the_death_of_who_uses_it() {
    let (give, take) = oneshot::channel::<Context>();
    let give = Mutex::new(Some(give));
    let victim = runnable(move |context: Context| {
        if let Some(give) = give.lock().unwrap().take() {
            let _ = give.send(context.clone());
        }
        async move {
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });
    let take = Mutex::new(Some(take));
    let villain = runnable(move |context: Context| {
        let take = take.lock().unwrap().take();
        async move {
            if let Some(take) = take {
                let stolen = take.await?;
                assert!(matches!(stolen.run("child", good()), Err(StartError::Foreign(_))));
                stolen.done();
            }
            Err(context.cancelled().await.into())
        }
    });
    let harness = Harness::start(root(vec![vec![("victim", victim)], vec![("villain", villain)]]));
    let dump = until(harness.observer(), |dump| restarts(dump, "root.villain") == 1).await;
    let error = find(&dump, "root.villain").unwrap().last_error.clone().unwrap();
    assert_eq!(error, "gave a signal in the name of root.victim, which is another runnable");
    assert_eq!(restarts(&dump, "root.victim"), 0);
    harness.finish().await;
}
