//! `exec-server use`: sets the environment of a directory.

use std::process::ExitCode;

use clap::Args;
use exec_settings::settings_source::VariableLookup;

use crate::command::{
    connect::{EnvArgs, EnvRoute, working_directory},
    directory_env::DirectoryEnv,
    failure::{CommandFailure, FailureKind},
    print::{print, printable},
};

/// Sets the environment of this directory and those below it.
///
/// Commands without --env and EXEC_SERVER_ENV then work there. The name is in .exec-server/env,
/// which you can commit. A file that you did not write this way is ignored until you allow its
/// content. Without arguments it prints the environment that commands use here.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct UseCommand {
    /// Environment, as for --env.
    #[arg(group = "action")]
    pub name: Option<String>,

    /// Allows .exec-server/env with its present content.
    #[arg(long, group = "action")]
    pub allow: bool,

    /// Removes .exec-server/env.
    #[arg(long, group = "action")]
    pub clear: bool,

    /// Ignores .exec-server/env from now on, and leaves it there.
    #[arg(long, group = "action")]
    pub forget: bool,
}

impl UseCommand {
    /// Changes or prints the environment of the directory.
    pub(crate) fn run(self) -> Result<ExitCode, CommandFailure> {
        let lookup: VariableLookup<'_> = &|name| std::env::var_os(name);
        let text = match self {
            Self {
                name: Some(name), ..
            } => set(&name, lookup)?,
            Self { allow: true, .. } => allow(lookup)?,
            Self { clear: true, .. } => {
                let env = existing(lookup)?;
                let line = format!("removed {}\n", env.path.display());
                env.remove(lookup)?;
                line
            }
            Self { forget: true, .. } => {
                let env = existing(lookup)?;
                env.forget(lookup)?;
                format!("{} is ignored from now on\n", env.path.display())
            }
            Self { .. } => current(lookup)?,
        };
        print(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn set(name: &str, lookup: VariableLookup<'_>) -> Result<String, CommandFailure> {
    resolve(name, lookup)?;
    let env = DirectoryEnv::write(&working_directory()?, name, lookup)?;
    Ok(announcement(&env))
}

fn allow(lookup: VariableLookup<'_>) -> Result<String, CommandFailure> {
    let mut env = existing(lookup)?;
    match &env.name {
        Some(name) => resolve(name, lookup)?,
        None => {
            let path = env.path.display();
            let what = format!("`{path}` does not have one line with the name of an environment");
            return Err(CommandFailure::failed(what).next("write one with `exec-server use NAME`"));
        }
    };
    env.allow(lookup)?;
    Ok(announcement(&env))
}

/// Checks that the name is known.
fn resolve(name: &str, lookup: VariableLookup<'_>) -> Result<(), CommandFailure> {
    let env_args = EnvArgs::default().with_env(name);
    EnvRoute::find(&env_args, lookup).map(drop)
}

fn announcement(env: &DirectoryEnv) -> String {
    let name = env.name.as_deref().unwrap_or_default();
    format!(
        "{name} is the environment of {}\n",
        env.directory().display()
    )
}

/// Returns the file of the working directory or of the nearest directory above it.
fn existing(lookup: VariableLookup<'_>) -> Result<DirectoryEnv, CommandFailure> {
    let directory = working_directory()?;
    match DirectoryEnv::find(&directory, lookup) {
        Ok(Some(env)) => Ok(env),
        Ok(None) => {
            let what = format!(
                "neither `{}` nor a directory above it has .exec-server/env",
                directory.display()
            );
            Err(CommandFailure::new(FailureKind::NotFound, what)
                .next("write one with `exec-server use NAME`"))
        }
        Err(error) => Err(CommandFailure::failed(error)),
    }
}

/// Returns the environment that commands use here, and where it is set.
fn current(lookup: VariableLookup<'_>) -> Result<String, CommandFailure> {
    let variable = lookup("EXEC_SERVER_ENV").filter(|name| !name.is_empty());
    let env_args = EnvArgs {
        env: variable.map(|name| name.to_string_lossy().into_owned()),
        ..EnvArgs::default()
    };
    let (requested, directory) = env_args.with_directory(lookup);
    let route = EnvRoute::requested(&env_args, lookup)?;
    let source = match (&directory, &requested.env) {
        (Some(directory), _) => directory.path.display().to_string(),
        (None, Some(_)) => "EXEC_SERVER_ENV".to_owned(),
        (None, None) => "the default".to_owned(),
    };
    Ok(format!(
        "{} ({})\n",
        printable(&route.name),
        printable(&source)
    ))
}

const EXAMPLES: &str = "\
Examples:
  exec-server use box
  exec-server use wss://devbox.example:8443
  exec-server use ssh:me@box
  exec-server use --allow      allows it after `git clone`, or after a change
  exec-server use              prints the environment, and where it is set";
