//! `exec-server env status` and `exec-server env list`.

use std::{
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use exec_environments::manager::EnvironmentId;
use exec_settings::{
    environments::{EnvEndpoint, EnvironmentSelection, SelectionInputs, foreign_keys},
    local_socket::LocalSocket,
    settings_source::{self, VariableLookup},
};
use exec_transport::connect::ServerAddress;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::timeout;

use crate::command::{
    connect::{ConnectedEnv, EnvArgs, EnvRoute, RouteKind, TerminalPrompts, directory_env, select},
    failure::{CommandFailure, FailureKind},
    print::{TextTable, json, print, print_stderr},
};

/// Limit for one environment. A hub waits for its executor for a while.
const TIMEOUT: Duration = Duration::from_secs(25);
/// Number of calls; the fastest one is the round trip.
const ROUND_TRIP_CALLS: usize = 5;

/// Connects to environments concurrently and reports their state.
///
/// Exits with status 0 if all of them answer, otherwise with the status that a command in the first
/// failing one would have. Starts the local server if it is not running.
#[derive(Args, Clone, Debug)]
pub(crate) struct EnvStatusCommand {
    /// Environments [default: all].
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// Prints a JSON array instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl EnvStatusCommand {
    /// Checks the environments and prints the result.
    pub(super) async fn run(self) -> Result<ExitCode, CommandFailure> {
        let routes_to_check = routes(&self.names, &|name| std::env::var_os(name))?;
        // Several prompts at once would compete for the terminal.
        let prompts = match routes_to_check.len() {
            1 => TerminalPrompts::Allowed,
            _ => TerminalPrompts::Forbidden,
        };
        let routes_to_check = routes_to_check.into_iter();
        let found = join_all(routes_to_check.map(|route| examine(route, prompts))).await;
        let text = match self.json {
            true => json(&found.iter().map(|(report, _)| report).collect::<Vec<_>>())?,
            false => text(found.iter().map(|(report, _)| report)),
        };
        print(&text)?;
        let failed = found.iter().find_map(|(_, failed)| *failed);
        Ok(failed.map_or(ExitCode::SUCCESS, ExitCode::from))
    }
}

/// Resolves the named environments, or all of them.
fn routes(names: &[String], lookup: VariableLookup<'_>) -> Result<Vec<EnvRoute>, CommandFailure> {
    let selection = select(lookup)?;
    let all = || rows(&selection, lookup).into_iter().map(|row| row.name);
    let names = match names.is_empty() {
        true => all().collect(),
        false => names.to_vec(),
    };
    let route = |name: &String| EnvRoute::selected(Some(name), &selection, lookup);
    names.iter().map(route).collect()
}

/// State of one environment.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct EnvStatusReport {
    name: String,
    reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    os: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shell: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// Round-trip time of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    round_trip_micros: Option<u64>,
    /// Why it is not reachable, and the next step.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

async fn examine(
    route: EnvRoute,
    prompts: TerminalPrompts,
) -> (EnvStatusReport, Option<FailureKind>) {
    let name = route.name.clone();
    let slow = || {
        let what = format!("no answer within {} seconds", TIMEOUT.as_secs());
        CommandFailure::new(FailureKind::Unreachable, what)
    };
    let response = timeout(TIMEOUT, query(route, prompts)).await;
    match response.unwrap_or_else(|_| Err(slow())) {
        Ok(report) => (report, None),
        Err(failure) => {
            let report = EnvStatusReport {
                name,
                error: Some(failure.to_string()),
                ..EnvStatusReport::default()
            };
            (report, Some(failure.kind))
        }
    }
}

async fn query(
    route: EnvRoute,
    prompts: TerminalPrompts,
) -> Result<EnvStatusReport, CommandFailure> {
    let env = ConnectedEnv::connect_route(route, prompts).await?;
    let mut fastest = Duration::MAX;
    for _ in 0..ROUND_TRIP_CALLS {
        let started = Instant::now();
        env.client.status().await?;
        fastest = fastest.min(started.elapsed());
    }
    let native = |path: &exec_wire::path_uri::PathUri| match path.to_native() {
        Ok(path) => path.to_string_lossy().into_owned(),
        Err(_) => path.to_string(),
    };
    Ok(EnvStatusReport {
        name: env.name,
        reachable: true,
        version: Some(env.info.executor_version),
        os: env.info.platform_os,
        shell: Some(env.info.shell.path),
        cwd: env.info.cwd.as_ref().map(native),
        round_trip_micros: Some(u64::try_from(fastest.as_micros()).unwrap_or(u64::MAX)),
        error: None,
    })
}

/// Formats a table, followed by the errors.
fn text<'a>(found: impl Iterator<Item = &'a EnvStatusReport>) -> String {
    let mut table = TextTable::new(&["NAME", "ROUND TRIP", "VERSION", "OS", "CWD"]);
    let mut errors = String::new();
    for display_path in found {
        let cell = |cell: &Option<String>| cell.clone().unwrap_or_default();
        let reached = match &display_path.error {
            Some(error) => {
                errors.push_str(&format!("{}: {error}\n", display_path.name));
                "unreachable".to_owned()
            }
            None => display_path.round_trip_micros.map(span).unwrap_or_default(),
        };
        table.push([
            display_path.name.clone(),
            reached,
            cell(&display_path.version),
            cell(&display_path.os),
            cell(&display_path.cwd),
        ]);
    }
    format!("{table}{errors}")
}

fn span(micros: u64) -> String {
    match micros {
        0..1000 => format!("{micros} us"),
        _ => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
    }
}

/// Lists the environments that --env accepts.
///
/// They come from our environments.toml (~/.config/exec-server), then from that of the Codex home
/// ($CODEX_HOME, or ~/.codex), or from variables. No connection is made; `exec-server env status`
/// does that.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct EnvListCommand {
    /// Prints a JSON array instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl EnvListCommand {
    /// Prints the environments.
    pub(super) fn run(self) -> Result<ExitCode, CommandFailure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let rows = rows_here(lookup)?;
        warn_of_foreign_keys(lookup);
        if self.json {
            print(&crate::command::print::json(&rows)?)?;
            return Ok(ExitCode::SUCCESS);
        }
        print(&table(rows).to_string())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Formats the environments that --env accepts as a table.
pub(crate) fn environment_table(lookup: VariableLookup<'_>) -> Result<String, CommandFailure> {
    Ok(table(rows_here(lookup)?).to_string())
}

fn table(rows: Vec<EnvRow>) -> TextTable {
    let mut table = TextTable::new(&["NAME", "KIND", "WHERE", "DEFAULT"]);
    for row in rows {
        let uses = [
            row.default.then_some("default"),
            row.directory.is_some().then_some("this directory"),
        ];
        let uses: Vec<_> = uses.into_iter().flatten().collect();
        table.push([row.name, row.kind.to_owned(), row.address, uses.join(", ")]);
    }
    table
}

/// Warns about keys that prevent Codex from starting, which earlier versions of `env add` wrote.
pub fn warn_of_foreign_keys(lookup: VariableLookup<'_>) {
    let inputs = SelectionInputs {
        lookup,
        read: &settings_source::read_text,
    };
    for key in foreign_keys(inputs) {
        print_stderr(&format!("warning: {key}"));
    }
}

/// One environment as shown to users. Contains no secrets.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub(super) struct EnvRow {
    /// Name.
    pub(super) name: String,
    /// Kind of connection: `local`, `url`, `hub`, `command` or `target`; else `unknown`.
    pub(super) kind: &'static str,
    /// Address.
    #[serde(rename = "place")]
    pub(super) address: String,
    /// Whether it is the default.
    pub(super) default: bool,
    /// The directory that uses it: the working directory, or one above it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) directory: Option<PathBuf>,
}

/// Lists the selected environments and that of the working directory.
fn rows_here(lookup: VariableLookup<'_>) -> Result<Vec<EnvRow>, CommandFailure> {
    let mut rows = rows(&select(lookup)?, lookup);
    let Some(found) = directory_env(lookup) else {
        return Ok(rows);
    };
    let name = found.name.clone().unwrap_or_default();
    let directory = Some(found.directory().to_owned());
    if let Some(row) = rows.iter_mut().find(|row| row.name == name) {
        row.directory = directory;
        return Ok(rows);
    }
    let env_args = EnvArgs::default().with_env(&name);
    let (kind, address) = match EnvRoute::find(&env_args, lookup).map(|route| route.route_kind) {
        Ok(RouteKind::Local(socket)) => ("local", format!("unix://{}", socket.path().display())),
        Ok(RouteKind::Named(endpoint) | RouteKind::Typed(endpoint)) => kind_and_address(&endpoint),
        Err(failure) => ("unknown", failure.what),
    };
    rows.push(EnvRow {
        name,
        kind,
        address,
        default: false,
        directory,
    });
    Ok(rows)
}

/// Lists the selected environments, this machine first.
pub(super) fn rows(selection: &EnvironmentSelection, lookup: VariableLookup<'_>) -> Vec<EnvRow> {
    let row = |id: &EnvironmentId, kind, address| EnvRow {
        name: id.to_string(),
        kind,
        address,
        default: selection.default.as_ref() == Some(id),
        directory: None,
    };
    let mut rows = Vec::new();
    if selection.local {
        let socket = LocalSocket::find(lookup);
        let address = format!("unix://{}", socket.path().display());
        rows.push(row(&EnvironmentId::local(), "local", address));
    }
    for remote in &selection.remotes {
        let (kind, address) = kind_and_address(&remote.endpoint);
        rows.push(row(&remote.id, kind, address));
    }
    rows
}

fn kind_and_address(endpoint: &EnvEndpoint) -> (&'static str, String) {
    match endpoint {
        // Path and query may be secret; the address omits them.
        EnvEndpoint::Url(url) => {
            let address = url.url.parse::<ServerAddress>();
            let displayed = address.map_or_else(|error| error.to_string(), |url| url.to_string());
            ("url", displayed)
        }
        EnvEndpoint::Relay(relay) => {
            let (hub, id) = (&relay.registry_url, &relay.environment_id);
            ("hub", format!("{id} at {hub}"))
        }
        EnvEndpoint::Program(endpoint) => {
            let program = &endpoint.program;
            let words = [&program.program].into_iter().chain(&program.args);
            let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
            ("command", words.join(" "))
        }
        EnvEndpoint::Target(endpoint) => ("target", endpoint.target.to_string()),
    }
}
