//! `exec-server replay`.

use std::{pin::pin, process::ExitCode, str::FromStr, time::Duration};

use clap::Args;
use exec_wire::process::OutputStream;
use tokio::time::{Instant, sleep_until};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached,
    failure::CommandFailure,
    process_session::{
        SignalListener, StdinReader, output_failure, print_notice, show_outages, write_output,
        write_result_bytes,
    },
    quantity::DurationArg,
    recorded_output::{ChunkTimes, RecordedChunk, RecordedOutput},
    terminal::{self, RawTerminal, StandardStream, TerminalModeTracker},
};

/// Plays the recorded output of a durable process with its timing.
///
/// q and Ctrl-C end it. A process that still runs is played up to now.
#[derive(Args, Clone, Debug)]
pub struct ReplayCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Speed: 2 is twice as fast.
    #[arg(long, value_name = "X", default_value = "1")]
    pub speed: ReplaySpeed,

    /// Shortens longer pauses to this time, such as 2s.
    #[arg(long, value_name = "SPAN")]
    pub max_pause: Option<DurationArg>,

    /// Id that `run --detach` printed or `history` lists, or a unique prefix of it.
    pub id: String,
}

/// Positive factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplaySpeed(f64);

impl FromStr for ReplaySpeed {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let factor: Option<f64> = text.parse().ok();
        let factor = factor.filter(|factor| (MIN_SPEED..=MAX_SPEED).contains(factor));
        factor
            .map(Self)
            .ok_or("expected a number from 0.01 to 1000, such as 2 or 0.5")
    }
}

const MIN_SPEED: f64 = 0.01;
const MAX_SPEED: f64 = 1000.0;

impl ReplayCommand {
    /// Plays the output until it ends or the user ends it.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let client = &env.client;
        let found = show_outages(client, async {
            let found = detached::find_readable(client, &self.id).await?;
            detached::add_recorded_facts(client, found).await
        });
        let found = found.await?;
        let output = RecordedOutput::open(client, &found.process_id, ChunkTimes::Required).await?;
        if let (Some(size), Some(local)) = (found.size, terminal::size())
            && (size.cols > local.cols || size.rows > local.rows)
            && StandardStream::Output.is_terminal()
        {
            print_notice(&format!(
                "its terminal had {} columns and {} rows, more than this one",
                size.cols, size.rows
            ));
        }
        let mut signals = SignalListener::listen().map_err(CommandFailure::failed)?;
        let (raw, keys) = match StandardStream::Input.is_terminal() {
            true => (
                RawTerminal::take().map_err(CommandFailure::failed)?,
                StdinReader::open().map_err(CommandFailure::failed)?,
            ),
            false => (None, None),
        };
        let mut player = Player {
            pace: ReplayPace::new(self.speed, self.max_pause),
            modes: TerminalModeTracker::default(),
            is_raw: raw.is_some(),
        };
        let outcome = {
            let mut played = pin!(player.play(output));
            let mut ended_by_key = pin!(quit_key(keys));
            tokio::select! {
                biased;
                status = signals.exit_requested() => Ok(status),
                () = &mut ended_by_key => Ok(ExitCode::SUCCESS),
                outcome = &mut played => outcome,
            }
        };
        if StandardStream::Output.is_terminal() {
            write_result_bytes(&player.modes.reset())?;
        }
        outcome
    }
}

/// Waits until the user types q, Q, Ctrl-C or Ctrl-D.
async fn quit_key(keys: Option<StdinReader>) {
    let Some(mut keys) = keys else {
        return std::future::pending().await;
    };
    loop {
        match keys.read().await {
            Ok(typed) if !typed.is_empty() => {
                if typed.iter().any(|key| matches!(key, b'q' | b'Q' | 3 | 4)) {
                    return;
                }
            }
            // The window was closed.
            Ok(_) | Err(_) => return,
        }
    }
}

struct Player {
    pace: ReplayPace,
    modes: TerminalModeTracker,
    /// Whether the local terminal adds no carriage returns.
    is_raw: bool,
}

impl Player {
    async fn play(&mut self, mut output: RecordedOutput) -> Result<ExitCode, CommandFailure> {
        while let Some(chunks) = output.next_page().await? {
            for chunk in chunks {
                if let Some(missing) = chunk.missing {
                    print_notice(missing.notice());
                }
                let due = self.pace.due(chunk.at_ms, Instant::now());
                sleep_until(due).await;
                if let Err(error) = self.show(chunk).await {
                    return output_failure(&error);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&mut self, chunk: RecordedChunk) -> std::io::Result<()> {
        let data = match chunk.stream {
            OutputStream::Pty => {
                self.modes.feed(&chunk.data);
                chunk.data
            }
            OutputStream::Stdout | OutputStream::Stderr if self.is_raw => {
                let mut data = Vec::with_capacity(chunk.data.len());
                for byte in &chunk.data {
                    if *byte == b'\n' {
                        data.push(b'\r');
                    }
                    data.push(*byte);
                }
                data.into()
            }
            OutputStream::Stdout | OutputStream::Stderr => chunk.data,
        };
        write_output(chunk.stream, data).await
    }
}

/// Decides when output is shown. Time that writing takes shortens the next pause.
#[derive(Clone, Copy, Debug)]
struct ReplayPace {
    speed: ReplaySpeed,
    max_pause: Option<Duration>,
    /// Recorded time of the last output, and when it was due.
    last: Option<(u64, Instant)>,
}

impl ReplayPace {
    fn new(speed: ReplaySpeed, max_pause: Option<DurationArg>) -> Self {
        Self {
            speed,
            max_pause: max_pause.map(|DurationArg(span)| span),
            last: None,
        }
    }

    /// Returns when output is due that was recorded at a time in milliseconds.
    fn due(&mut self, at_ms: u64, now: Instant) -> Instant {
        let due = match self.last {
            None => now,
            Some((last_ms, last_due)) => {
                let pause = Duration::from_millis(at_ms.saturating_sub(last_ms));
                let pause = pause.div_f64(self.speed.0);
                let pause = self.max_pause.map_or(pause, |most| pause.min(most));
                last_due.checked_add(pause).unwrap_or(last_due)
            }
        };
        self.last = Some((at_ms, due));
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_scaled_and_limited() {
        let start = Instant::now();
        let millis = |due: Instant| (due - start).as_millis();
        let limit = Some(DurationArg(Duration::from_secs(1)));
        let mut pace = ReplayPace::new(ReplaySpeed(2.0), limit);
        let due = [5_000, 5_500, 65_500, 65_400, 65_600].map(|at| millis(pace.due(at, start)));
        // The clock was set back by 100 ms.
        assert_eq!(due, [0, 250, 1250, 1250, 1350]);
    }

    #[test]
    fn speed_is_a_positive_number() {
        assert_eq!("0.5".parse(), Ok(ReplaySpeed(0.5)));
        for wrong in ["", "0", "-1", "nan", "inf", "2x"] {
            assert!(wrong.parse::<ReplaySpeed>().is_err(), "{wrong}");
        }
    }
}
