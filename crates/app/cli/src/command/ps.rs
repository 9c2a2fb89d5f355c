//! `exec-server ps`.

use std::{
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use clap::{Args, Subcommand};
use exec_wire::process::{ProcessState, ProcessSummary, ReleaseProcess};

use crate::command::{
    connect::{ConnectedEnv, EnvArgs},
    detached,
    failure::CommandFailure,
    print::{TextTable, json},
    process_session::{show_outages, write_result},
    terminal::{self, StandardStream},
};

/// Lists detached processes.
///
/// Exited ones are listed for a while with their status; `ps rm` removes them earlier. CPU is the
/// processor time of the whole process tree, MEMORY the largest resident set of one of its
/// processes.
#[derive(Args, Clone, Debug)]
#[command(
    mut_arg("env", |arg| arg.global(true)),
    mut_arg("token_file", |arg| arg.global(true))
)]
pub struct PsCommand {
    /// Subcommand.
    #[command(subcommand)]
    pub(crate) command: Option<PsSubcommand>,

    #[command(flatten)]
    #[doc(hidden)]
    pub env_args: EnvArgs,

    /// Includes processes of other sessions, such as a `run` that lost its terminal, which `attach`
    /// takes over, and ended ones that `history` lists.
    #[arg(short, long)]
    pub all: bool,

    /// Prints one JSON array.
    #[arg(long)]
    pub json: bool,
}

/// Subcommands of `ps`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum PsSubcommand {
    /// Removes exited processes and their output, also from the history.
    Rm(PsRmCommand),
}

/// Removes exited processes and their output, also from the history.
#[derive(Args, Clone, Debug)]
pub(crate) struct PsRmCommand {
    /// Ids that `ps` lists, or unique prefixes of them.
    #[arg(required = true, value_name = "ID")]
    pub(crate) ids: Vec<String>,
}

impl PsRmCommand {
    async fn run(self, env: &ConnectedEnv) -> Result<ExitCode, CommandFailure> {
        let client = &env.client;
        show_outages(client, async {
            // Check all of them before removing any.
            let found = detached::find(client, &self.ids).await?;
            if let Some(running) = found.iter().find(|process| process.running) {
                return Err(detached::still_running(env, &running.process_id));
            }
            for process in found {
                let forgotten = client.call(ReleaseProcess {
                    process_id: process.process_id,
                    forget: true,
                });
                forgotten.await.map_err(detached::call_failure)?;
            }
            Ok(ExitCode::SUCCESS)
        })
        .await
    }
}

impl PsCommand {
    /// Lists the processes and prints them.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let env = ConnectedEnv::open(&self.env_args).await?;
        if let Some(PsSubcommand::Rm(remove)) = self.command {
            return remove.run(&env).await;
        }
        let processes = match self.all {
            true => show_outages(&env.client, detached::list_all_recorded(&env.client)).await?,
            false => show_outages(&env.client, detached::list(&env.client)).await?,
        };
        if self.json {
            return write_result(&json(&processes)?);
        }
        write_result(&TableStyle::of_output().processes(&processes))
    }
}

/// How a table of processes is printed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableStyle {
    /// Current time since the Unix epoch.
    pub(crate) now: Duration,
    /// Maximum line width, if limited.
    columns: Option<usize>,
    /// Whether the header is highlighted.
    colours: bool,
}

const HEAD: [&str; 7] = ["ID", "STATE", "STARTED", "CPU", "MEMORY", "TTY", "COMMAND"];

impl TableStyle {
    /// Returns the style for stdout.
    pub(crate) fn of_output() -> Self {
        Self {
            columns: match StandardStream::Output.is_terminal() {
                true => terminal::size().map(|size| usize::from(size.cols)),
                false => None,
            },
            colours: terminal::has_colours(StandardStream::Output),
            ..Self::plain()
        }
    }

    /// Returns a style without limits and colours.
    pub(crate) fn plain() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            now: now.unwrap_or(Duration::ZERO),
            columns: None,
            colours: false,
        }
    }

    /// Formats processes.
    pub(crate) fn processes(self, processes: &[ProcessSummary]) -> String {
        self.table(HEAD, processes.iter().map(|one| self.row(one)).collect())
    }

    /// Formats a table.
    pub(crate) fn table(self, head: [&str; 7], rows: Vec<[String; 7]>) -> String {
        let mut table = TextTable::new(&head);
        for row in rows {
            table.push(row);
        }
        let columns = self.columns.unwrap_or(usize::MAX);
        let mut text = String::new();
        for (index, line) in table.to_string().lines().enumerate() {
            let line: String = line.chars().take(columns).collect();
            text.push_str(&match index == 0 && self.colours {
                true => format!("\x1b[1m{line}\x1b[0m\n"),
                false => format!("{line}\n"),
            });
        }
        text
    }

    fn row(self, process: &ProcessSummary) -> [String; 7] {
        let started = Duration::from_millis(process.started_at_ms);
        let nothing = || "-".to_owned();
        [
            escaped(process.process_id.as_str()),
            state(process),
            format!("{} ago", rounded(self.now.saturating_sub(started))),
            process.usage.map_or_else(nothing, |usage| {
                let cpu = Duration::from_millis(usage.user_ms + usage.system_ms);
                format!("{:.2}s", cpu.as_secs_f64())
            }),
            process
                .usage
                .map_or_else(nothing, |usage| bytes(usage.max_rss_bytes)),
            match process.tty {
                true => "yes".to_owned(),
                false => nothing(),
            },
            command_line(process),
        ]
    }
}

/// Describes whether a process runs, or how it ended.
pub(crate) fn state(process: &ProcessSummary) -> String {
    match (process.running, process.exit_code) {
        (true, _) if !process.detached => "foreground".to_owned(),
        (true, _) => "running".to_owned(),
        (false, _) if process.state == Some(ProcessState::Lost) => "lost".to_owned(),
        (false, Some(code)) => format!("ended {code}"),
        (false, None) => "ended".to_owned(),
    }
}

/// Returns the command line of a process, quoted for a shell.
pub(crate) fn command_line(process: &ProcessSummary) -> String {
    let words = process.argv.iter().map(|word| quoted(word));
    words.collect::<Vec<_>>().join(" ")
}

/// Formats a duration in its largest unit.
pub(crate) fn rounded(span: Duration) -> String {
    match span.as_secs() {
        seconds @ ..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86_400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    match bytes {
        ..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}K", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{}M", bytes >> 20),
        _ => format!("{:.1}G", bytes as f64 / f64::from(1 << 30)),
    }
}

/// Escapes control characters in foreign text.
pub(crate) fn escaped(text: &str) -> String {
    let escape = |sign: char| match sign.is_control() {
        true => sign.escape_default().to_string(),
        false => sign.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let plain = |sign: char| sign.is_alphanumeric() || "-_./=:,+@%".contains(sign);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    match word.chars().any(char::is_control) {
        true => format!("$'{}'", escaped(&word.replace('\'', "\\'"))),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use exec_wire::{id::ProcessId, path_uri::PathUri, process::ResourceUsage};

    use super::*;

    #[test]
    fn columns_align_lines_are_truncated_and_escapes_are_quoted() {
        let process = |id: &str, argv: &[&str]| ProcessSummary {
            process_id: ProcessId::new(id).unwrap(),
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            cwd: PathUri::parse("file:///").unwrap(),
            tty: true,
            running: true,
            exit_code: None,
            started_at_ms: 0,
            os_pid: None,
            detached: true,
            usage: None,
            owner: None,
            state: None,
            output_bytes: None,
            durable: None,
            ended_at_ms: None,
            size: None,
        };
        let ended = ProcessSummary {
            running: false,
            exit_code: Some(143),
            usage: Some(ResourceUsage {
                user_ms: 1500,
                max_rss_bytes: 3 << 20,
                ..ResourceUsage::default()
            }),
            tty: false,
            ..process("b", &["sh", "-c", "echo 'a'", "\x1b[31m"])
        };
        let mut view = TableStyle {
            now: Duration::from_secs(125),
            columns: None,
            colours: false,
        };
        let text = view.processes(&[process("alpha", &["top"]), ended]);
        assert_eq!(
            text,
            "ID     STATE      STARTED  CPU    MEMORY  TTY  COMMAND\n\
             alpha  running    2m ago   -      -       yes  top\n\
             b      ended 143  2m ago   1.50s  3M      -    sh -c 'echo '\\''a'\\''' $'\\u{1b}[31m'\n"
        );
        view.columns = Some(8);
        assert_eq!(view.processes(&[]), "ID  STAT\n");
    }
}
