//! What runs beside the node, under its supervisor.

use std::sync::Arc;

use polis_supervisor::{Context, Runnable, RunnableResult, runnable};

use crate::inputs::Inputs;
use crate::machine::Machine;
use crate::{clock, console, crash_records, kept_log, kernel_log, names, orphans, power_button, watchdog};

impl Machine {
    /// All that goes on beside the node: a runnable, to be called `machine` and started as early as can be.
    #[must_use]
    pub fn runnable(&self, inputs: Inputs) -> impl Runnable + use<> {
        let machine = self.clone();
        runnable(move |context| run(machine.clone(), inputs.clone(), context))
    }
}

async fn run(machine: Machine, inputs: Inputs, context: Context) -> RunnableResult {
    for trouble in machine.troubles() {
        context.conditions().raise(trouble.name, trouble.severity, trouble.message.as_str(), trouble.hint);
    }
    context.run("orphans", orphans::reap)?;
    context.run("power-button", power_button::watch)?;
    context.run("watchdog", {
        let machine = machine.clone();
        move |context| watchdog::keep_fed(context, machine.clone())
    })?;
    context.run("kernel-log", {
        let machine = machine.clone();
        move |context| kernel_log::copy(context, machine.clone())
    })?;
    context.run("names", {
        let (names, nameservers) = (inputs.names.clone(), inputs.nameservers.clone());
        move |context| names::keep(context, names.clone(), nameservers.clone())
    })?;
    context.run("clock", {
        let (machine, servers) = (machine.clone(), inputs.time_servers.clone());
        move |context| clock::keep(context, machine.clone(), servers.clone())
    })?;
    context.run("kept-log", {
        let (data, begun) = (inputs.data.clone(), machine.kept_log_begun());
        move |context| kept_log::keep(context, data.clone(), Arc::clone(&begun))
    })?;
    context.run("crash-records", {
        let data = inputs.data.clone();
        move |context| crash_records::keep(context, data.clone())
    })?;
    context.run("status", {
        let overview = inputs.overview.clone();
        move |context| console::tell_changes(context, overview.clone())
    })?;
    context.run("screen", {
        let overview = inputs.overview.clone();
        move |context| console::screen::show(context, overview.clone())
    })?;
    context.healthy();
    Err(context.cancelled().await.into())
}
