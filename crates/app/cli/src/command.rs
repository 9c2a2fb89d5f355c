//! The commands for people: each does one thing in an environment, and ends with a status that tells
//! what became of it.
//! Invariant: what goes wrong is one line that says what, why and what to do next.

mod attach;
mod bench;
mod cat;
mod completions;
pub(crate) mod connect;
mod cp;
mod detached;
mod edit;
mod env;
pub(crate) mod failure;
mod files;
mod find;
mod grep;
mod kill;
mod logs;
mod ls;
mod man;
mod mcp;
mod mkdir;
mod mv;
mod operand;
mod print;
pub(crate) mod process_session;
mod ps;
pub(crate) mod quantity;
mod rm;
mod run;
pub(crate) mod start;
mod terminal;
mod wait;
mod watch;

use std::process::ExitCode;

use clap::Subcommand;

use self::connect::parting;

pub use self::{
    attach::Attach,
    bench::Bench,
    cat::Cat,
    completions::{CompletionList, Completions},
    connect::Where,
    cp::Cp,
    edit::Edit,
    env::{Env, warn_of_foreign_keys},
    failure::{Failure, FailureKind},
    find::Find,
    grep::Grep,
    kill::{Kill, NamedSignal},
    logs::Logs,
    ls::Ls,
    man::Man,
    mcp::Mcp,
    mkdir::Mkdir,
    mv::Mv,
    print::Table,
    process_session::{DetachKeys, DetachKeysError},
    ps::Ps,
    quantity::{AmountError, Size, Span},
    rm::Rm,
    run::{Run, Shell},
    start::{NetworkReach, SandboxChoice, Setting, Surroundings},
    wait::Wait,
    watch::Watch,
};
pub use crate::doctor::examine;

pub(crate) use self::connect::Socket as LocalSocket;

/// A command for people.
#[derive(Clone, Debug, Subcommand)]
pub enum Line {
    /// Runs a command, and ends as it ends.
    Run(Run),
    /// Opens a shell.
    Shell(Shell),
    /// Lists processes that outlive their connection.
    Ps(Ps),
    /// Prints what a detached process wrote.
    Logs(Logs),
    /// Follows a detached process and types into its terminal.
    Attach(Attach),
    /// Ends a detached process, or signals it.
    Kill(Kill),
    /// Waits for a detached process, and ends as it ended.
    Wait(Wait),
    /// Copies files and directories, in either direction.
    Cp(Cp),
    /// Lists a directory.
    Ls(Ls),
    /// Makes directories.
    Mkdir(Mkdir),
    /// Removes files and directories.
    Rm(Rm),
    /// Renames or moves files and directories.
    Mv(Mv),
    /// Prints files.
    Cat(Cat),
    /// Opens a file in an editor here and puts it back.
    Edit(Edit),
    /// Finds files by their names.
    Find(Find),
    /// Finds lines that match.
    Grep(Grep),
    /// Runs a command again whenever files change.
    Watch(Watch),
    /// Lists, adds and checks environments.
    Env(Env),
    /// Serves the tools for agents as an MCP server.
    Mcp(Mcp),
    /// Measures an environment: the time of a call, of a command, of a byte.
    Bench(Bench),
    /// Prints a completion script for a shell.
    Completions(Completions),
    /// Prints the manual page.
    Man(Man),
}

impl Line {
    /// Does it. Servers are left with last words.
    /// `cli` describes the whole command line, for completions and manual pages.
    pub async fn run(self, cli: fn() -> clap::Command) -> Result<ExitCode, Failure> {
        parting(self.dispatch(cli)).await
    }

    async fn dispatch(self, cli: fn() -> clap::Command) -> Result<ExitCode, Failure> {
        match self {
            Self::Run(command) => command.run().await,
            Self::Shell(command) => command.run().await,
            Self::Ps(command) => command.run().await,
            Self::Logs(command) => command.run().await,
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
            Self::Env(command) => command.run().await,
            Self::Mcp(command) => command.run().await,
            Self::Bench(command) => command.run().await,
            Self::Completions(command) => command.run(cli).await,
            Self::Man(command) => command.run(cli()),
        }
    }
}
