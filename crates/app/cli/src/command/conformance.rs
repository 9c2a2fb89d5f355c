//! `exec-server conformance`: checks an implementation of the protocol.
//!
//! Invariant: every wait is bounded, and everything it made on the server's host is removed. Not
//! here: cases that depend on a transport or a sandbox, which the tests of this project have.

mod case_runner;
mod conformance_case;
mod message_pattern;
mod raw_connection;

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use exec_client::connect::{
    RemoteExecServerConnectArgs, ServerConnector, SessionContinuity, StdioExecServerConnectArgs,
};
use exec_settings::{environments::EnvEndpoint, outbound_network::OutboundNetwork};
use exec_wire::{error::ErrorCode, initialize::ProtocolExtension};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use self::{
    case_runner::{CaseRunner, granted, handshake},
    conformance_case::ConformanceCase,
    raw_connection::RawConnection,
};
use crate::command::{
    connect::{EnvArgs, EnvRoute, RouteKind},
    failure::{CommandFailure, FailureKind},
    print::{print, printable},
    quantity::DurationArg,
};

pub use self::conformance_case::ConformanceProfile;

/// Checks an implementation of the protocol.
///
/// Runs each case on a new connection and prints a line for it. Exits with 1 if one fails.
/// The server's host needs a POSIX shell and its usual commands.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConformanceCommand {
    /// Server: a ws://, wss:// or unix:// URL, the path of a unix socket, or a name from `env list`.
    #[arg(value_name = "URL|NAME", required_unless_present_any = ["program", "list"])]
    pub target: Option<String>,

    /// Starts this program, which speaks on stdin and stdout, for each connection. Its arguments
    /// follow.
    #[arg(
        long,
        value_name = "PROGRAM",
        num_args = 1..,
        allow_hyphen_values = true,
        conflicts_with = "target"
    )]
    pub program: Vec<String>,

    /// File with the token for a server at a URL; EXEC_SERVER_TOKEN holds the token itself.
    #[arg(long, value_name = "FILE", env = "EXEC_SERVER_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// Which cases to run: `stock` has those of the stock server's methods.
    #[arg(long, value_enum, default_value = "full")]
    pub profile: ConformanceProfile,

    /// Runs only cases whose name contains this text. May be repeated.
    #[arg(long, value_name = "TEXT")]
    pub filter: Vec<String>,

    /// Directory on the server's host for the files of the cases.
    #[arg(long, value_name = "PATH", default_value = "/tmp")]
    pub dir: String,

    /// Time to wait for each message.
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub wait: DurationArg,

    /// Lists the cases instead of running them.
    #[arg(long)]
    pub list: bool,

    /// Prints one JSON object per case, and one with the totals.
    #[arg(long)]
    pub json: bool,
}

/// How a case ended.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "camelCase")]
enum CaseOutcome {
    Passed,
    Failed { reason: String },
    Skipped { reason: String },
}

/// Line of the report.
#[derive(Debug, Serialize)]
struct CaseReport<'a> {
    case: &'a str,
    #[serde(flatten)]
    outcome: CaseOutcome,
    milliseconds: u128,
}

/// Number of cases by outcome.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct CaseCounts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl ConformanceCommand {
    /// Runs the cases and prints the report.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let cases = self.selected()?;
        if self.list {
            let names: String = cases
                .iter()
                .map(|case| format!("{}\n", case.name))
                .collect();
            print(&names)?;
            return Ok(ExitCode::SUCCESS);
        }
        let connector = self.connector()?;
        let host = TestHost::open(&*connector, &self).await?;
        let mut counts = CaseCounts::default();
        let judged = self.judge(&*connector, &host, &cases, &mut counts).await;
        host.clean_up().await;
        judged?;
        print(&match self.json {
            true => format!("{}\n", json!(counts)),
            false => {
                let CaseCounts {
                    passed,
                    failed,
                    skipped,
                } = counts;
                format!("{passed} passed, {failed} failed, {skipped} skipped\n")
            }
        })?;
        Ok(match counts.failed {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }

    /// Returns the cases of the profile that pass the name filter.
    fn selected(&self) -> Result<Vec<ConformanceCase>, CommandFailure> {
        let cases = conformance_case::all().map_err(CommandFailure::failed)?;
        let is_selected = |case: &ConformanceCase| {
            let in_profile = case.profile == ConformanceProfile::Stock
                || self.profile == ConformanceProfile::Full;
            let named = self
                .filter
                .iter()
                .any(|text| case.name.contains(text.as_str()));
            in_profile && (named || self.filter.is_empty())
        };
        let cases: Vec<_> = cases.into_iter().filter(is_selected).collect();
        if cases.is_empty() {
            let what = "no case has such a name";
            return Err(CommandFailure::usage(what)
                .next("`exec-server conformance --list` prints the names"));
        }
        Ok(cases)
    }

    async fn judge(
        &self,
        connector: &dyn ServerConnector,
        host: &TestHost,
        cases: &[ConformanceCase],
        counts: &mut CaseCounts,
    ) -> Result<(), CommandFailure> {
        for (index, case) in cases.iter().enumerate() {
            let started = Instant::now();
            let outcome = match host.obstacle(connector, case).await {
                Some(reason) => CaseOutcome::Skipped { reason },
                None => match host.make_directory(index).await {
                    Err(reason) => CaseOutcome::Failed { reason },
                    Ok(dir) => {
                        let run = CaseRunner::run(connector, self.wait.0, &dir, case).await;
                        run.map_or_else(
                            |failure| CaseOutcome::Failed {
                                reason: failure.to_string(),
                            },
                            |()| CaseOutcome::Passed,
                        )
                    }
                },
            };
            match outcome {
                CaseOutcome::Passed => counts.passed += 1,
                CaseOutcome::Failed { .. } => counts.failed += 1,
                CaseOutcome::Skipped { .. } => counts.skipped += 1,
            }
            let report = CaseReport {
                case: &case.name,
                outcome,
                milliseconds: started.elapsed().as_millis(),
            };
            print(&match self.json {
                true => format!("{}\n", json!(report)),
                false => report.line(),
            })?;
        }
        Ok(())
    }

    /// Returns how to reach the server.
    fn connector(&self) -> Result<Box<dyn ServerConnector>, CommandFailure> {
        const CLIENT_NAME: &str = "exec-server conformance";
        if let [program, arguments @ ..] = &self.program[..] {
            let args = StdioExecServerConnectArgs::new(program, arguments, CLIENT_NAME);
            return Ok(Box::new(args.connector()));
        }
        let target = self.target.clone().unwrap_or_default();
        let env_args = EnvArgs {
            env: Some(match target.starts_with('/') {
                true => format!("unix://{target}"),
                false => target.clone(),
            }),
            token_file: self.token_file.clone(),
            reconnect_timeout: None,
            ephemeral: false,
        };
        let route = EnvRoute::find(&env_args, &|name| std::env::var_os(name))?;
        let endpoint = match route.route_kind {
            RouteKind::Named(endpoint) | RouteKind::Typed(endpoint) => Some(endpoint),
            RouteKind::Local(_) => None,
        };
        let url = match endpoint {
            Some(EnvEndpoint::Url(url)) => url,
            Some(EnvEndpoint::Program(program)) => {
                let args = StdioExecServerConnectArgs::from(program);
                return Ok(Box::new(args.connector()));
            }
            Some(EnvEndpoint::Relay(_) | EnvEndpoint::Target(_)) | None => {
                return Err(CommandFailure::usage(format!("`{target}` has no URL"))
                    .next("give the ws:// or unix:// URL of the server itself"));
            }
        };
        let args = RemoteExecServerConnectArgs {
            trust: OutboundNetwork::trust(&|name| std::env::var_os(name)),
            ..url.into()
        };
        let connector = args.connector();
        Ok(Box::new(connector.map_err(CommandFailure::usage)?))
    }
}

impl CaseReport<'_> {
    fn line(&self) -> String {
        let name = printable(self.case);
        match &self.outcome {
            CaseOutcome::Passed => format!("ok    {name}\n"),
            CaseOutcome::Failed { reason } => format!("FAIL  {name}: {}\n", printable(reason)),
            CaseOutcome::Skipped { reason } => format!("skip  {name}: {reason}\n"),
        }
    }
}

/// Host of the server under test: its granted extensions, and a directory for the cases.
#[derive(Debug)]
struct TestHost {
    connection: tokio::sync::Mutex<RawConnection>,
    granted: Vec<ProtocolExtension>,
    root: String,
}

impl TestHost {
    /// Connects and creates the directory.
    async fn open(
        connector: &dyn ServerConnector,
        command: &ConformanceCommand,
    ) -> Result<Self, CommandFailure> {
        let unreachable = |error: &dyn std::error::Error| {
            CommandFailure::new(FailureKind::Unreachable, error)
                .next("check that the server runs, and pass its token with --token-file FILE")
        };
        let wait: Duration = command.wait.0;
        let connection = RawConnection::open(connector, wait).await;
        let mut connection = connection.map_err(|error| unreachable(&error))?;
        let members = json!({ "extensions": ProtocolExtension::ALL });
        let result = handshake(&mut connection, members).await;
        let result = result.map_err(|error| unreachable(&error))?;
        let dir = command.dir.trim_end_matches('/');
        let host = Self {
            connection: connection.into(),
            granted: granted(&result),
            root: format!(
                "file://{dir}/exec-server-conformance-{}",
                Uuid::new_v4().simple()
            ),
        };
        let created = host.create_directory(&host.root).await;
        created.map_err(|reason| {
            let what = format!("cannot create a directory for the cases: {reason}");
            CommandFailure::failed(what)
                .next("name a directory that the server can write with --dir PATH")
        })?;
        Ok(host)
    }

    /// Returns why a case cannot run here.
    async fn obstacle(
        &self,
        connector: &dyn ServerConnector,
        case: &ConformanceCase,
    ) -> Option<String> {
        let lacks = |extension: &&ProtocolExtension| !self.granted.contains(extension);
        if let Some(extension) = case.extensions.iter().find(lacks) {
            return Some(format!("extension {} is not granted", json!(extension)));
        }
        for method in &case.methods {
            let mut connection = self.connection.lock().await;
            let response = connection.call(method, Some(&json!({}))).await;
            let code = response
                .ok()
                .map(|response| response["error"]["code"].clone());
            if code.is_some_and(|code| code == ErrorCode::INVALID_REQUEST.0) {
                return Some(format!("{method} is not available on this server"));
            }
        }
        let is_alone = connector.continuity() == SessionContinuity::Ended;
        (is_alone && case.needs_listener())
            .then(|| "needs a server that accepts several connections".to_owned())
    }

    /// Creates an empty directory for a case, and returns its URI.
    async fn make_directory(&self, index: usize) -> Result<String, String> {
        let dir = format!("{}/{index}", self.root);
        self.create_directory(&dir).await?;
        Ok(dir)
    }

    async fn create_directory(&self, uri: &str) -> Result<(), String> {
        let params = json!({ "path": uri, "recursive": false });
        let mut connection = self.connection.lock().await;
        let response = connection.call("fs/createDirectory", Some(&params)).await;
        let response = response.map_err(|error| error.to_string())?;
        match response.get("error") {
            None => Ok(()),
            Some(error) => Err(format!("fs/createDirectory failed: {error}")),
        }
    }

    /// Removes everything that the cases made.
    async fn clean_up(self) {
        let params: Value = json!({ "path": self.root, "recursive": true, "force": true });
        // A server that cannot do that has failed cases.
        let removed = self
            .connection
            .into_inner()
            .call("fs/remove", Some(&params))
            .await;
        drop(removed);
    }
}

const EXAMPLES: &str = "\
Examples:
  exec-server conformance ws://127.0.0.1:8765
  exec-server conformance /run/agent.sock --filter fs --json
  exec-server conformance --profile stock --program codex exec-server --listen stdio";
