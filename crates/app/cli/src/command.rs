//! Commands for people: each works in one environment and exits with a status that reports the
//! result.
//! Invariant: an error is one line that names the problem, its cause and the next step.

mod attach;
mod bench;
mod cat;
mod completions;
mod conformance;
pub(crate) mod connect;
mod connect_command;
mod cp;
mod detached;
mod directory_env;
mod dist;
mod edit;
mod env;
pub(crate) mod failure;
mod file_changes;
mod files;
mod history;
mod invite;
mod logs;
mod ls;
#[cfg(feature = "mcp")]
mod mcp;
mod operand;
mod overview;
mod ports;
mod print;
pub(crate) mod process_session;
pub(crate) mod ps;
pub(crate) mod quantity;
mod recorded_output;
mod replay;
pub(crate) mod run;
mod schema;
mod search;
mod terminal;
mod tunnel;
mod upgrade;
mod use_command;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use crate::command::connect::drain_connections;

#[cfg(feature = "mcp")]
pub use self::mcp::McpCommand;
pub use self::{
    attach::AttachCommand,
    bench::BenchCommand,
    cat::CatCommand,
    completions::{CompletionList, CompletionsCommand, ManCommand},
    conformance::{ConformanceCommand, ConformanceProfile},
    connect::EnvArgs,
    connect_command::ConnectCommand,
    cp::CpCommand,
    detached::{KillCommand, NamedSignal, WaitCommand},
    dist::DistCommand,
    edit::EditCommand,
    env::{EnvCommand, warn_of_foreign_keys},
    failure::{CommandFailure, FailureKind},
    file_changes::{MkdirCommand, MvCommand, RmCommand},
    history::HistoryCommand,
    invite::{RedeemedInvite, read_invite, redeem_invite},
    logs::{LogsCommand, SinceArg, SinceError},
    ls::LsCommand,
    overview::{is_interactive, show_overview},
    ports::PortsCommand,
    print::TextTable,
    process_session::{DetachKeys, DetachKeysError},
    ps::PsCommand,
    quantity::{ByteSizeArg, DurationArg, QuantityError},
    replay::{ReplayCommand, ReplaySpeed},
    run::{ExecArgs, NetworkChoice, RunCommand, SandboxChoice, ShellCommand, VariableArg},
    schema::SchemaCommand,
    search::{FindCommand, GrepCommand},
    tunnel::{TunnelArg, TunnelCommand, TunnelSpec, TunnelSpecError},
    upgrade::UpgradeCommand,
    use_command::UseCommand,
    watch::WatchCommand,
};
pub use crate::doctor::examine;

/// Command for people.
#[derive(Clone, Debug, Subcommand)]
pub enum UserCommand {
    /// Runs a command and exits with its status.
    Run(RunCommand),
    /// Opens a shell.
    Shell(ShellCommand),
    /// Lists processes that outlive their connection.
    Ps(PsCommand),
    /// Prints what a detached process wrote.
    Logs(LogsCommand),
    /// Plays what a process wrote to its terminal, with its timing.
    Replay(ReplayCommand),
    /// Lists durable processes that run or have ended.
    History(HistoryCommand),
    /// Follows a detached process and types into its terminal.
    Attach(AttachCommand),
    /// Ends a detached process, or signals it.
    Kill(KillCommand),
    /// Waits for a detached process and exits with its status.
    Wait(WaitCommand),
    /// Copies files and directories, in either direction.
    Cp(CpCommand),
    /// Lists a directory.
    Ls(LsCommand),
    /// Makes directories.
    Mkdir(MkdirCommand),
    /// Removes files and directories.
    Rm(RmCommand),
    /// Renames or moves files and directories.
    Mv(MvCommand),
    /// Prints files.
    Cat(CatCommand),
    /// Edits a file of the environment in a local editor.
    Edit(EditCommand),
    /// Finds files by name.
    Find(FindCommand),
    /// Searches files for lines that match a pattern.
    Grep(GrepCommand),
    /// Reruns a command whenever files change.
    Watch(WatchCommand),
    /// Sets the environment of this directory and those below it.
    Use(UseCommand),
    /// Makes ports of an environment reachable here, or ports of this machine there.
    Tunnel(TunnelCommand),
    /// Lists ports that listen.
    Ports(PortsCommand),
    /// Lists, adds and checks environments.
    Env(EnvCommand),
    /// Makes an environment of any place with a shell, for a client on stdin and stdout.
    Connect(ConnectCommand),
    /// Lists the programs that can be pushed to other machines.
    Dist(DistCommand),
    /// Serves the tools for agents as an MCP server.
    #[cfg(feature = "mcp")]
    Mcp(McpCommand),
    /// Replaces a running server with another version, which takes over everything.
    Upgrade(UpgradeCommand),
    /// Measures latency and throughput of an environment.
    Bench(BenchCommand),
    /// Checks an implementation of the protocol.
    Conformance(ConformanceCommand),
    /// Prints a completion script for a shell.
    Completions(CompletionsCommand),
    /// Prints the manual page.
    Man(ManCommand),
    /// Prints the JSON Schema of the protocol's messages.
    Schema(SchemaCommand),
}

impl UserCommand {
    /// Runs the command, then drains the connections it opened.
    ///
    /// `cli` describes the whole command line; completions and manual pages are generated from it.
    pub async fn run(self, cli: fn() -> clap::Command) -> Result<ExitCode, CommandFailure> {
        drain_connections(self.dispatch(cli)).await
    }

    async fn dispatch(self, cli: fn() -> clap::Command) -> Result<ExitCode, CommandFailure> {
        match self {
            Self::Run(command) => command.run().await,
            Self::Shell(command) => command.run().await,
            Self::Ps(command) => command.run().await,
            Self::Logs(command) => command.run().await,
            Self::Replay(command) => command.run().await,
            Self::History(command) => command.run().await,
            Self::Attach(command) => command.run().await,
            Self::Kill(command) => command.run().await,
            Self::Wait(command) => command.run().await,
            Self::Cp(command) => command.run().await,
            Self::Ls(command) => command.run().await,
            Self::Mkdir(command) => command.run().await,
            Self::Rm(command) => command.run().await,
            Self::Mv(command) => command.run().await,
            Self::Cat(command) => command.run().await,
            Self::Edit(command) => command.run().await,
            Self::Find(command) => command.run().await,
            Self::Grep(command) => command.run().await,
            Self::Watch(command) => command.run().await,
            Self::Use(command) => command.run(),
            Self::Tunnel(command) => command.run().await,
            Self::Ports(command) => command.run().await,
            Self::Env(command) => command.run().await,
            Self::Connect(command) => command.run().await,
            Self::Dist(command) => command.run(),
            #[cfg(feature = "mcp")]
            Self::Mcp(command) => command.run().await,
            Self::Upgrade(command) => command.run().await,
            Self::Bench(command) => command.run().await,
            Self::Conformance(command) => command.run().await,
            Self::Completions(command) => command.run(cli).await,
            Self::Man(command) => command.run(cli()),
            Self::Schema(command) => command.run(),
        }
    }
}
