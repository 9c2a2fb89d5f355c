//! Output of `exec-server` without arguments on a terminal: a description, the running processes of
//! this machine, the environments, and commands to try. Starts nothing.

use std::{process::ExitCode, time::Duration};

use exec_settings::{local_socket::LocalSocket, settings_source::VariableLookup};
use exec_transport::socket_path::SocketPath;
use exec_wire::process::ProcessSummary;
use tokio::time::timeout;

use crate::command::{
    connect::{ConnectedEnv, EnvRoute, TerminalPrompts, drain_connections},
    detached,
    env::environment_table,
    failure::{CommandFailure, FailureKind},
    print::{print, printable},
    ps::TableStyle,
    terminal::{self, StandardStream},
};

/// Limit for the answer of this machine's server.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum lines of each table, besides its header.
const MAX_ROWS: usize = 8;

/// Returns whether the program runs interactively: output and input are terminals.
pub fn is_interactive() -> bool {
    StandardStream::Input.is_terminal() && StandardStream::Output.is_terminal()
}

/// Prints the overview. What cannot be determined is one line in it, not a failure.
pub async fn show_overview() -> Result<ExitCode, CommandFailure> {
    drain_connections(async {
        let lookup: VariableLookup<'_> = &|name| std::env::var_os(name);
        let overview = Overview {
            processes: processes(lookup).await,
            environments: environment_table(lookup),
            columns: terminal::size().map_or(usize::MAX, |size| usize::from(size.cols)),
            colours: terminal::has_colours(StandardStream::Output),
        };
        print(&overview.text())?;
        Ok(ExitCode::SUCCESS)
    })
    .await
}

/// Lists the processes of this machine's server; `None` if none is running.
async fn processes(
    lookup: VariableLookup<'_>,
) -> Result<Option<Vec<ProcessSummary>>, CommandFailure> {
    if SocketPath::connect(LocalSocket::find(lookup).path()).is_err() {
        return Ok(None);
    }
    let listed = timeout(TIMEOUT, async {
        let env = ConnectedEnv::connect_route(EnvRoute::local(lookup), TerminalPrompts::Forbidden)
            .await?;
        detached::list_all(&env.client).await
    });
    let late = |_| {
        let what = format!("its server did not answer within {} s", TIMEOUT.as_secs());
        CommandFailure::new(FailureKind::Unreachable, what)
    };
    let mut processes = listed.await.map_err(late)??;
    processes.retain(|process| process.running);
    Ok(Some(processes))
}

/// Contents of the overview.
struct Overview {
    /// Running processes of this machine's server; `None` without a server.
    processes: Result<Option<Vec<ProcessSummary>>, CommandFailure>,
    /// Table of environments.
    environments: Result<String, CommandFailure>,
    /// Width of the terminal.
    columns: usize,
    /// Whether headings are highlighted.
    colours: bool,
}

impl Overview {
    fn text(&self) -> String {
        let version = env!("CARGO_PKG_VERSION");
        let mut text = format!(
            "exec-server {version}\n\
             Runs commands and file operations where the code lives: here, on a server, in a\n\
             container, or behind a hub.\n"
        );
        self.section(&mut text, "On this machine");
        match &self.processes {
            Ok(None) => self.line(&mut text, "nothing runs; the first command starts a server"),
            Ok(Some(processes)) if processes.is_empty() => {
                self.line(&mut text, "a server is running, without processes");
            }
            Ok(Some(processes)) => {
                let table = TableStyle::plain().processes(processes);
                self.table(&mut text, &table, "exec-server ps --all");
            }
            Err(failure) => self.line(&mut text, &failure.to_string()),
        }
        self.section(&mut text, "Environments");
        match &self.environments {
            Ok(table) => self.table(&mut text, table, "exec-server env list"),
            Err(failure) => self.line(&mut text, &failure.to_string()),
        }
        self.section(&mut text, "Try");
        for (command, effect) in EXAMPLES {
            self.line(&mut text, &format!("{command:<44}{effect}"));
        }
        text.push_str("\nexec-server --help lists everything.\n");
        text
    }

    fn section(&self, text: &mut String, heading: &str) {
        text.push_str(&match self.colours {
            true => format!("\n\x1b[1m{heading}\x1b[0m\n"),
            false => format!("\n{heading}\n"),
        });
    }

    /// Adds a line that fits on the terminal.
    fn line(&self, text: &mut String, line: &str) {
        let line = format!("  {}", printable(line.trim_end()));
        text.extend(line.chars().take(self.columns));
        text.push('\n');
    }

    /// Adds the first lines of a table, and what shows the others.
    fn table(&self, text: &mut String, table: &str, all: &str) {
        let lines: Vec<_> = table.lines().collect();
        for line in lines.iter().take(MAX_ROWS + 1) {
            self.line(text, line);
        }
        if let Some(others @ 1..) = lines.len().checked_sub(MAX_ROWS + 1) {
            self.line(text, &format!("and {others} more: {all}"));
        }
    }
}

/// Commands to try.
const EXAMPLES: [(&str, &str); 6] = [
    (
        "exec-server run -- make test",
        "a command; -E NAME: elsewhere",
    ),
    ("exec-server shell", "a shell"),
    (
        "exec-server run -E ssh:HOST -- make test",
        "an ssh host; or docker:NAME",
    ),
    ("exec-server env add box wss://HOST:PORT", "another machine"),
    ("exec-server use box", "the environment of this directory"),
    (
        "exec-server --listen ws://127.0.0.1:8765",
        "a server for others",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn overview(environments: &str) -> Overview {
        Overview {
            processes: Ok(None),
            environments: Ok(environments.to_owned()),
            columns: 80,
            colours: false,
        }
    }

    #[test]
    fn long_tables_are_cut_and_say_what_shows_the_rest() {
        let rows: String = (0..20).map(|row| format!("env-{row}\n")).collect();
        let text = overview(&format!("NAME\n{rows}")).text();
        assert!(text.contains("\n  NAME\n  env-0\n"), "{text}");
        assert!(
            text.contains("  env-7\n  and 12 more: exec-server env list\n"),
            "{text}"
        );
        assert!(!text.contains("env-8"), "{text}");
        let rows: String = (0..8).map(|row| format!("env-{row}\n")).collect();
        let text = overview(&format!("NAME\n{rows}")).text();
        assert!(text.contains("env-7\n\nTry"), "{text}");
    }

    #[test]
    fn lines_fit_on_the_terminal_and_failures_are_lines() {
        let mut shown = overview("NAME\n");
        let failure = CommandFailure::failed("line 3 is\nwrong".to_owned());
        shown.environments = Err(failure.next("x".repeat(200)));
        let text = shown.text();
        assert!(text.contains("\n  line 3 is?wrong; xxx"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for (_, effect) in EXAMPLES {
            assert!(text.contains(effect), "{effect:?} in {text}");
        }
        shown.colours = true;
        assert!(shown.text().contains("\n\x1b[1mTry\x1b[0m\n"));
    }
}
