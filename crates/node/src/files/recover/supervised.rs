//! Work of a command that has child processes: it is done under a supervisor, once, and tells what it does.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use polis_supervisor::{BoxError, Context, Supervisor};
use tokio::runtime::Runtime;

/// Steps of which is told while they are done, at most that many at a time.
const TOLD: usize = 16;

/// Tells what is being done. Clones tell the same person.
#[derive(Clone)]
pub(super) struct Teller(mpsc::SyncSender<String>);

impl Teller {
    pub(super) fn say(&self, text: &str) {
        // Who does not listen any more does not need it.
        let _ = self.0.send(text.to_owned());
    }
}

/// Does `work`, and returns what comes of it, once all that belongs to it has ended. Blocks.
pub(super) fn supervised<T, F, W>(runtime: &Runtime, tell: &dyn Fn(&str), work: W) -> Result<T, BoxError>
where
    T: Send + 'static,
    F: Future<Output = Result<T, BoxError>> + Send,
    W: Fn(Context, Teller) -> F + Send + Sync + 'static,
{
    let (told, heard) = mpsc::sync_channel::<String>(TOLD);
    let outcome: Arc<Mutex<Option<Result<T, BoxError>>>> = Arc::default();
    let (teller, work, result) = (Teller(told), Arc::new(work), Arc::clone(&outcome));
    let supervisor = {
        let _entered = runtime.enter();
        Supervisor::builder().start(move |context: Context| {
            let (teller, work, result) = (teller.clone(), Arc::clone(&work), Arc::clone(&result));
            async move {
                context.healthy();
                let done = work(context.clone(), teller.clone()).await;
                *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                // Nothing is told any more.
                teller.say("");
                Err(context.cancelled().await.into())
            }
        })
    };
    while let Ok(text) = heard.recv() {
        if text.is_empty() {
            break;
        }
        tell(&text);
    }
    runtime.block_on(supervisor.shutdown())?;
    let outcome = outcome.lock().unwrap_or_else(PoisonError::into_inner).take();
    outcome.unwrap_or_else(|| Err("it was stopped".into()))
}
