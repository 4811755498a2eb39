//! What it costs that data are encrypted by gocryptfs: starts of nodes on encrypted and on plain data, in turn.

use crate::BenchError;
use crate::arguments::Arguments;
use crate::place::Place;
use crate::report::Report;
use crate::start::{Times, node};

/// At most so many times what it takes on plain data.
const LIMIT: f64 = 1.4;

/// Measures both, in turn.
pub(crate) async fn measure(arguments: &Arguments, place: &Place, report: &mut Report) -> Result<(), BenchError> {
    let parameters = place.encrypted_parameters()?;
    let (mut encrypted, mut plain) = (Times::default(), Times::default());
    for run in 1..=arguments.runs {
        node(place, &parameters, &mut encrypted).await?;
        node(place, &place.parameters, &mut plain).await?;
        arguments.progress(&format!("run {run}: start and restart: encrypted {encrypted}; plain {plain}"));
    }
    let figure = encrypted.start.figure_beside_plain("encrypted: exec to Running", &plain.start, LIMIT);
    report.add(figure);
    let figure = encrypted.restart.figure_beside_plain("encrypted: restart to Running", &plain.restart, LIMIT);
    report.add(figure);
    Ok(())
}
