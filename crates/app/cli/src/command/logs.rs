//! `exec-server logs`.

mod asciicast;
mod since;

use std::{path::PathBuf, process::ExitCode};

use bytes::Bytes;
use clap::Args;
use exec_client::client::ExecServerClient;
use exec_wire::{
    id::OutputSeq,
    process::{OutputStream, ProcessSummary},
};

use self::asciicast::AsciicastFile;
use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached::{self, call_failure},
    failure::CommandFailure,
    process_session::{
        ProcessSession, SessionEnd, SessionOwner, SignalListener, TerminalUse, output_failure,
        print_notice, show_outages, write_output,
    },
    recorded_output::{ChunkTimes, RecordedOutput},
    tunnel::no_notices,
};

pub use self::since::{SinceArg, SinceError};

/// Prints the output of a detached process.
///
/// Of a durable process, the server records all output, up to its --journal-bytes; of any other, it
/// retains the end, by default one mebibyte. Ended processes that `history` lists can be read, too.
/// Ctrl-C ends following; the process keeps running.
#[derive(Args, Clone, Debug)]
pub struct LogsCommand {
    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Follows the output until the process exits.
    #[arg(short, long)]
    pub follow: bool,

    /// Prints only the last lines.
    #[arg(short = 'n', long, value_name = "LINES")]
    pub tail: Option<usize>,

    /// Prints only the first lines.
    #[arg(long, value_name = "LINES", conflicts_with_all = ["tail", "follow"])]
    pub head: Option<usize>,

    /// Prints only output since then: a span before now, such as 10m, or a time, such as
    /// 2026-01-31T12:00:00Z. For durable processes.
    #[arg(long, value_name = "SPAN|TIME")]
    pub since: Option<SinceArg>,

    /// Writes an asciinema recording into FILE instead, or to stdout if it is `-`. For durable
    /// processes.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["head", "tail", "follow"])]
    pub asciicast: Option<PathBuf>,

    /// Lets --asciicast replace an existing file.
    #[arg(long, requires = "asciicast")]
    pub force: bool,

    /// Id that `run --detach` printed or `history` lists, or a unique prefix of it.
    pub id: String,
}

impl LogsCommand {
    /// Prints the recorded output, and follows it on request.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        let client = &env.client;
        let found = show_outages(client, detached::find_readable(client, &self.id)).await?;
        let id = &found.process_id;
        let times = match self.since.is_some() || self.asciicast.is_some() {
            true => ChunkTimes::Required,
            false => ChunkTimes::Omitted,
        };
        let mut output = RecordedOutput::open(client, id, times).await?;
        if let Some(since) = self.since {
            output.skip_until(since.unix_ms()).await?;
        }
        if let Some(lines) = self.tail {
            output.skip_to_last_lines(lines).await?;
        }
        if let Some(path) = &self.asciicast {
            let found = show_outages(client, detached::add_recorded_facts(client, found));
            let file = AsciicastFile::create(path, self.force)?;
            return file.write(&found.await?, output).await;
        }
        let mut remaining = self.head.map(LineLimit);
        while let Some(chunks) = output.next_page().await? {
            for chunk in chunks {
                if let Some(missing) = chunk.missing {
                    print_notice(missing.notice());
                }
                let data = match &mut remaining {
                    Some(remaining) => remaining.take(chunk.data),
                    None => chunk.data,
                };
                if let Err(error) = write_output(chunk.stream, data).await {
                    return output_failure(&error);
                }
                if remaining.is_some_and(LineLimit::is_reached) {
                    return Ok(ExitCode::SUCCESS);
                }
            }
        }
        if !self.follow || output.is_closed() {
            return Ok(ExitCode::SUCCESS);
        }
        follow(&env, &found, output.last()).await
    }
}

/// Prints what a process writes after an event until it exits.
async fn follow(
    env: &ConnectedEnv,
    found: &ProcessSummary,
    after: OutputSeq,
) -> Result<ExitCode, CommandFailure> {
    let (client, id) = (&env.client, &found.process_id);
    let attached = show_outages(client, client.attach(id.clone(), Some(after))).await;
    let session = ProcessSession {
        client: client.clone(),
        process: attached.map_err(call_failure)?,
        signals: SignalListener::listen().map_err(CommandFailure::failed)?,
        after,
        owner: SessionOwner::Server,
        input: None,
        terminal: TerminalUse::None,
        keys: None,
        snapshot: Vec::new(),
        limit: None,
        notices: no_notices(),
    };
    let end = session.run().await.map_err(CommandFailure::failed)?;
    // `wait` reports the exit status.
    if matches!(end, SessionEnd::Exited(_) | SessionEnd::Closed) {
        return Ok(ExitCode::SUCCESS);
    }
    end.status(SessionOwner::Server, id, env)
}

/// Lines that may still be printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct LineLimit(usize);

impl LineLimit {
    /// Takes the part of the output that may be printed.
    fn take(&mut self, mut data: Bytes) -> Bytes {
        for (at, byte) in data.iter().enumerate() {
            if self.0 == 0 {
                data.truncate(at);
                break;
            }
            self.0 -= usize::from(*byte == b'\n');
        }
        data
    }

    fn is_reached(self) -> bool {
        self.0 == 0
    }
}

/// Output that is enough to redraw a screen. More would take long to read.
const SCREEN_BYTES: usize = 1 << 20;

/// Passes the end of the recorded output of a process to `show`.
pub(crate) async fn replay_end(
    client: &ExecServerClient,
    process: &ProcessSummary,
    mut show: impl FnMut(OutputStream, Bytes),
) -> Result<ReplayedEnd, CommandFailure> {
    let mut output = RecordedOutput::open(client, &process.process_id, ChunkTimes::Omitted).await?;
    let mut complete = !output.skip_to_last_bytes(SCREEN_BYTES).await?;
    while let Some(chunks) = output.next_page().await? {
        for chunk in chunks {
            complete &= chunk.missing.is_none();
            show(chunk.stream, chunk.data);
        }
    }
    Ok(ReplayedEnd {
        last: output.last(),
        complete,
    })
}

/// Where a replay ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplayedEnd {
    /// Last event that it includes.
    pub(crate) last: OutputSeq,
    /// Whether it included everything that was ever written.
    pub(crate) complete: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_lines_are_counted_across_chunks() {
        for (lines, expected) in [
            (0, ["", "", ""]),
            (1, ["one\n", "", ""]),
            (2, ["one\ntw", "o\n", ""]),
            (9, ["one\ntw", "o\nthree\n", "four"]),
        ] {
            let mut limit = LineLimit(lines);
            let taken = ["one\ntw", "o\nthree\n", "four"].map(|text| limit.take(text.into()));
            assert_eq!(taken, expected.map(Bytes::from), "{lines}");
        }
    }
}
