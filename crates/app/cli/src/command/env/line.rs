//! What to do with environments.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::{add::Add, default::Default, list::List, remove::Remove, status::Status};
use crate::command::failure::Failure;

/// Lists, adds and checks environments.
#[derive(Args, Clone, Debug)]
pub struct Env {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: EnvCommand,
}

/// What to do with environments.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EnvCommand {
    /// Lists the environments that --env can name.
    #[command(visible_alias = "ls")]
    List(List),
    /// Adds an environment to our environments.toml.
    Add(Box<Add>),
    /// Connects to environments and tells what answers.
    Status(Status),
    /// Makes an environment the one that is used when none is named.
    Default(Default),
    /// Removes an environment from our environments.toml.
    #[command(visible_alias = "rm")]
    Remove(Remove),
}

impl Env {
    /// Does it.
    pub(crate) async fn run(self) -> Result<ExitCode, Failure> {
        match self.command {
            EnvCommand::List(list) => list.run(),
            EnvCommand::Add(add) => add.run(),
            EnvCommand::Status(status) => status.run().await,
            EnvCommand::Default(default) => default.run(),
            EnvCommand::Remove(remove) => remove.run(),
        }
    }
}
