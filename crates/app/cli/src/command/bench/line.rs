//! What is measured, and for how long.

use std::{process::ExitCode, time::Duration};

use clap::Args;
use serde::Serialize;

use super::{
    measure::Measure,
    report::{Measured, Numbers, Outcome, table},
};
use crate::command::{
    failure::{Failure, FailureKind},
    place::{Place, Where},
    print::{json, print},
};

/// Measures an environment: the time of a call, of a command and of a keystroke, and the rate of
/// output and files.
///
/// Commands and files there are the measurement's own, and nothing is left behind.
#[derive(Args, Clone, Debug)]
pub struct Bench {
    /// Which environment.
    #[command(flatten)]
    pub place: Where,

    /// How long it all may take, about.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 6,
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    pub seconds: u64,

    /// Prints one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

impl Bench {
    /// Measures it. Ends with status 1 if something could not be measured.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let place = Place::open(&self.place).await?;
        let name = place.name.clone();
        let measure = Measure::new(place, Duration::from_secs(self.seconds) / PARTS);
        let measured = all(&measure).await;
        let text = match self.json {
            true => json(&Printed {
                environment: name,
                measured: measured.iter().map(Numbers::from).collect(),
            })?,
            false => format!("{name}\n{}", table(&measured)),
        };
        print(&text)?;
        let is_failed = |one: &Measured| matches!(one.outcome, Outcome::Failed(_));
        Ok(match measured.iter().any(is_failed) {
            true => FailureKind::Failed.into(),
            false => ExitCode::SUCCESS,
        })
    }
}

/// Measures everything, one after the other.
async fn all(measure: &Measure) -> Vec<Measured> {
    let entry = |name, typical, outcome: Result<Outcome, Failure>| Measured {
        name,
        typical,
        outcome: outcome.unwrap_or_else(|failure| Outcome::Failed(failure.to_string())),
    };
    vec![
        entry("call", "0.05 ms", measure.call().await),
        entry("command `true`", "1 ms", measure.command().await),
        entry(
            "keystroke on a terminal",
            "0.1 ms",
            measure.keystroke().await,
        ),
        entry("output", "1000 MB/s", measure.output().await),
        entry("file written", "1000 MB/s", measure.write().await),
        entry("file read", "1500 MB/s", measure.read().await),
    ]
}

/// What is printed for programs.
#[derive(Serialize)]
struct Printed {
    environment: String,
    measured: Vec<Numbers>,
}

/// Measurements among which the time is divided.
const PARTS: u32 = 6;
