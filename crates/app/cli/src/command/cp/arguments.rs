//! What is asked for, and what is said in the end.

use std::{ffi::OsString, io::Write, process::ExitCode};

use clap::Args;

use super::{
    copier::{CopyOptions, KeepTimes, Resume},
    job::copy_all,
    links::LinkMode,
    meter::{Meter, Show, Summary},
    side::Side,
    target::{Target, Trees, check_twins},
};
use crate::command::{
    failure::{Failure, FailureKind},
    operand::Operand,
    place::Where,
    terminal::Standard,
};

/// Copies files and directories, in either direction.
#[derive(Args, Clone, Debug)]
#[command(
    override_usage = "exec-server cp [OPTIONS] SOURCE... TARGET",
    after_help = "A path in the environment has a colon before it: `cp -E box notes.txt :/srv/`, \
                  `cp -r box:logs .`. A file here with a colon in its name needs `./` before it.\n\n\
                  What is interrupted leaves a hidden part beside its target; the same command goes on \
                  with it. Modes are kept, times where the target is here; -a keeps times everywhere. Links in \
                  directories are copied as links, wherever they lead; -L copies what they lead to.\n\n\
                  A directory goes into a target that is a directory already, and keeps its name there; \
                  `cp -r src/. :dst` brings `dst` up to date instead."
)]
pub struct Cp {
    #[command(flatten)]
    place: Where,

    /// Copies directories with everything in them.
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,

    /// Copies directories, and keeps times besides modes and links.
    #[arg(short, long)]
    archive: bool,

    /// Copies what links in directories lead to, instead of the links.
    #[arg(short = 'L', long)]
    dereference: bool,

    /// Copies everything anew: parts of an earlier run are not used.
    #[arg(long)]
    no_resume: bool,

    /// Shows no progress, and no summary.
    #[arg(short, long)]
    quiet: bool,

    /// Prints the summary as JSON.
    #[arg(long)]
    json: bool,

    /// Sources, and last the target. `:PATH` and `NAME:PATH` are in an environment.
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    paths: Vec<OsString>,
}

impl Cp {
    /// Copies files and directories, in either direction.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        let mut operands = Vec::new();
        for typed in &self.paths {
            operands.push(Operand::read(typed)?);
        }
        let Some((target, sources)) = operands.split_last() else {
            return Err(Failure::new(FailureKind::Usage, "no target is named"));
        };
        if operands
            .iter()
            .all(|operand| matches!(operand, Operand::Here(_)))
        {
            return Err(
                Failure::new(FailureKind::Usage, "every path is on this machine")
                    .next("write `:` before a path in the environment, such as `:/srv/`"),
            );
        }
        let mut sides = Vec::new();
        for operand in &operands {
            let side = self.side(operand, &sides).await?;
            sides.push((operand.clone(), side));
        }
        let side_of = |wanted: &Operand| {
            let found = sides.iter().find(|(operand, _)| operand == wanted);
            found.map(|(_, side)| side.clone())
        };
        let missing = || Failure::new(FailureKind::Failed, "an environment was lost");
        let to = side_of(target).ok_or_else(missing)?;
        let target = Target::find(to, target, sources.len()).await?;
        let trees = match self.recursive || self.archive {
            true => Trees::Copied,
            false => Trees::Refused,
        };
        // Everything is looked at before anything is copied.
        let mut pairs = Vec::new();
        for source in sources {
            let from = side_of(source).ok_or_else(missing)?;
            let pair = target.pair(&from, source, trees).await?;
            pairs.push((from, pair));
        }
        check_twins(&pairs, &target.side)?;
        let mut groups: Vec<(Side, Vec<_>)> = Vec::new();
        for (from, pair) in pairs {
            match groups.last_mut().filter(|(side, _)| side.is(&from)) {
                Some((_, pairs)) => pairs.push(pair),
                None => groups.push((from, vec![pair])),
            }
        }
        let options = CopyOptions {
            resume: match self.no_resume {
                true => Resume::Nothing,
                false => Resume::Parts,
            },
            links: match self.dereference {
                true => LinkMode::Follow,
                false => LinkMode::Keep,
            },
            times: match self.archive {
                true => KeepTimes::Yes,
                false => KeepTimes::No,
            },
        };
        let meter = Meter::new(match self.quiet {
            true => Show::Nothing,
            false => Show::OnTerminal,
        });
        for (from, pairs) in groups {
            let copied = copy_all(&from, &target.side, pairs, options, &meter).await;
            if copied.is_err() {
                meter.end();
            }
            copied?;
        }
        meter.end();
        self.conclude(&meter)
    }

    /// Finds the end that a path is on; each environment is connected to once.
    async fn side(&self, operand: &Operand, known: &[(Operand, Side)]) -> Result<Side, Failure> {
        let same = |other: &Operand| match (operand, other) {
            (Operand::Here(_), Operand::Here(_)) => true,
            (Operand::There(name, _), Operand::There(other, _)) => name == other,
            (Operand::Here(_), Operand::There(..)) | (Operand::There(..), Operand::Here(_)) => {
                false
            }
        };
        if let Some((_, side)) = known.iter().find(|(other, _)| same(other)) {
            return Ok(side.clone());
        }
        match operand {
            Operand::Here(_) => Ok(Side::here()),
            Operand::There(None, _) => Side::there(self.place.clone()).await,
            Operand::There(Some(name), path) => {
                let wanted = Where {
                    env: Some(name.clone()),
                    ..self.place.clone()
                };
                Side::there(wanted).await.map_err(|failure| {
                    let is_unknown = failure.kind == FailureKind::UnknownEnvironment;
                    let file = format!("{name}:{}", path.display());
                    match is_unknown && std::path::Path::new(&file).exists() {
                        true => failure.next(format!("write `./{file}` for the file here")),
                        false => failure,
                    }
                })
            }
        }
    }

    fn conclude(&self, meter: &Meter) -> Result<ExitCode, Failure> {
        let (summary, first) = meter.outcome();
        let text = match (self.json, self.quiet) {
            (true, _) => {
                let text = serde_json::to_string(&summary);
                text.map_err(|error| Failure::new(FailureKind::Failed, error))? + "\n"
            }
            (false, false) if Standard::Error.is_terminal() => said(&summary),
            (false, _) => String::new(),
        };
        let mut out: Box<dyn Write> = match self.json {
            true => Box::new(std::io::stdout().lock()),
            false => Box::new(std::io::stderr().lock()),
        };
        // The copy is done, whether or not anybody reads what it came to.
        drop(out.write_all(text.as_bytes()).and_then(|()| out.flush()));
        match (first, summary.failed) {
            (None, _) => Ok(ExitCode::SUCCESS),
            (Some(first), 1) if summary.files == 0 => Err(first),
            (Some(first), failed) => {
                let what = format!("{first} ({failed} not copied, {} copied)", summary.files);
                Err(Failure::new(FailureKind::Failed, what))
            }
        }
    }
}

/// Says in one line what was copied.
fn said(summary: &Summary) -> String {
    let rate = match summary.seconds > 0.0 {
        #[expect(
            clippy::cast_precision_loss,
            reason = "a rate is shown with three digits"
        )]
        true => summary.written_bytes as f64 / summary.seconds / 1e6,
        false => 0.0,
    };
    let files = match summary.files {
        1 => "1 file".to_owned(),
        files => format!("{files} files"),
    };
    let resumed = match summary.resumed_bytes {
        0 => String::new(),
        bytes => format!(
            ", {} of it from an earlier run",
            indicatif::HumanBytes(bytes)
        ),
    };
    format!(
        "copied {files}, {}{resumed}, in {:.1} s ({rate:.0} MB/s)\n",
        indicatif::HumanBytes(summary.bytes),
        summary.seconds
    )
}
