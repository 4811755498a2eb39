//! Measures how long ten thousand runnables take to start, and how promptly one group of them restarts, alone.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use polis_supervisor::{BackoffSettings, NodeReport, Settings, SharedRunnable, State, Supervisor, runnable};
use tokio::sync::watch;

const RUNNABLES: usize = 10_000;
const MEMBERS: usize = 10;

/// Without randomness, so that it can be subtracted.
const BACKOFF: Duration = Duration::from_millis(500);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let healthy = Arc::new(AtomicU64::new(0));
    let (all_healthy, mut wait_for_all) = watch::channel(0);
    let (kill, killed) = watch::channel(false);
    let death: Arc<Mutex<Option<Instant>>> = Arc::default();
    let member = |dies: bool| -> SharedRunnable {
        let (healthy, all_healthy, killed) = (Arc::clone(&healthy), all_healthy.clone(), killed.clone());
        let died = Arc::clone(&death);
        runnable(move |context| {
            let (healthy, all_healthy, mut killed) = (Arc::clone(&healthy), all_healthy.clone(), killed.clone());
            let died = Arc::clone(&died);
            async move {
                context.healthy();
                all_healthy.send_replace(healthy.fetch_add(1, Ordering::Relaxed) + 1);
                if dies && !*killed.borrow() {
                    context.unless_cancelled(killed.changed()).await??;
                    *died.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                    return Err("killed".into());
                }
                Err(context.cancelled().await.into())
            }
        })
    };
    let groups: Vec<Vec<(String, SharedRunnable)>> = (0..RUNNABLES / MEMBERS)
        .map(|group| {
            (0..MEMBERS).map(|number| (format!("g{group}-{number}"), member(group == 0 && number == 0))).collect()
        })
        .collect();
    let root = runnable(move |context| {
        let groups = groups.clone();
        async move {
            for group in groups {
                context.run_group(group)?;
            }
            context.healthy();
            Err(context.cancelled().await.into())
        }
    });

    let backoff = BackoffSettings { initial: BACKOFF, randomization: 0.0, ..BackoffSettings::default() };
    let settings = Settings { backoff, ..Settings::default() };
    let begin = Instant::now();
    let supervisor = Supervisor::builder().settings(settings).start(root);
    wait_for_all.wait_for(|healthy| *healthy >= RUNNABLES as u64).await?;
    println!("supervisor-start runnables={RUNNABLES} seconds={:.3}", begin.elapsed().as_secs_f64());

    let observer = supervisor.observer();
    let in_group = |node: &NodeReport| node.distinguished_name.as_str().starts_with("root.g0-");
    kill.send_replace(true);
    wait_for_all.wait_for(|healthy| *healthy >= (RUNNABLES + MEMBERS) as u64).await?;
    let end = Instant::now();
    let death = death.lock().unwrap_or_else(PoisonError::into_inner).ok_or("nothing died")?;
    let over = (end - death).checked_sub(BACKOFF).ok_or("the group restarted before its backoff was over")?;
    let dump = observer
        .wait_until(|dump| dump.iter().filter(|node| in_group(node)).all(|node| node.state == State::Healthy))
        .await;
    let others = dump.iter().filter(|node| !in_group(node) && node.restarts > 0).count();
    let restarted = dump.iter().filter(|node| in_group(node) && node.restarts == 1).count();
    println!(
        "supervisor-group-restart members={restarted} delay_over_backoff_ms={:.1} others_restarted={others}",
        over.as_secs_f64() * 1000.0
    );

    let begin = Instant::now();
    supervisor.shutdown().await?;
    println!("supervisor-stop runnables={RUNNABLES} seconds={:.3}", begin.elapsed().as_secs_f64());
    let met = restarted == MEMBERS && others == 0 && over < Duration::from_millis(50);
    if met { Ok(()) } else { Err("the group did not restart alone and within 50 ms of its backoff".into()) }
}
