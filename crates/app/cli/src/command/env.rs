//! `exec-server env`: lists, adds, checks and removes environments.
//!
//! Invariant: our `environments.toml` is replaced atomically and only by valid content; the file of
//! Codex is never written.

mod environments_file;
mod status;

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgGroup, Args, Subcommand};
use exec_connect::target::Target;
use exec_environments::manager::EnvironmentId;
use exec_registry::invite::InviteRole;
use exec_settings::{environments::EnvironmentsFault, settings_source::VariableLookup};
use toml::Value;

use crate::command::{
    connect::select,
    env::{
        environments_file::{EnvironmentsFile, appended, ids, with_default, without},
        status::{EnvListCommand, EnvStatusCommand},
    },
    failure::{CommandFailure, FailureKind},
    invite::{read_invite, redeem_invite},
    print::print_stderr,
};

pub(crate) use self::status::environment_table;

pub use self::status::warn_of_foreign_keys;

/// Lists, adds and checks environments.
#[derive(Args, Clone, Debug)]
pub struct EnvCommand {
    /// Subcommand.
    #[command(subcommand)]
    pub(crate) command: EnvSubcommand,
}

/// Subcommands of `env`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum EnvSubcommand {
    /// Lists the environments that --env accepts.
    #[command(visible_alias = "ls")]
    List(EnvListCommand),
    /// Adds an environment to our environments.toml.
    Add(Box<EnvAddCommand>),
    /// Connects to environments and reports their state.
    Status(EnvStatusCommand),
    /// Sets the default environment.
    Default(EnvDefaultCommand),
    /// Removes an environment from our environments.toml.
    #[command(visible_alias = "rm")]
    Remove(EnvRemoveCommand),
}

impl EnvCommand {
    /// Runs the subcommand.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        match self.command {
            EnvSubcommand::List(list) => list.run(),
            EnvSubcommand::Add(add) => add.run().await,
            EnvSubcommand::Status(status) => status.run().await,
            EnvSubcommand::Default(default) => default.run(),
            EnvSubcommand::Remove(remove) => remove.run(),
        }
    }
}

/// Adds an environment to our environments.toml.
///
/// Its server is reached at a URL, in a place with a shell such as an ssh host, through a hub, or by
/// a command that speaks the protocol on stdin and stdout. Tokens are not copied: the file names the
/// token's file or variable. The file is ~/.config/exec-server/environments.toml; the
/// environments.toml of Codex is read and never changed.
#[derive(Args, Clone, Debug)]
#[command(
    group = ArgGroup::new("way").required(true).args(["url", "hub", "invite", "command"]),
    override_usage = USAGE,
    after_help = EXAMPLES
)]
pub(crate) struct EnvAddCommand {
    /// Name of the environment: letters, digits, `_` and `-`.
    pub(crate) name: String,

    /// URL of its server (ws://HOST:PORT or wss://HOST:PORT), or a place with a shell: ssh:HOST,
    /// docker:NAME, podman:NAME, k8s:NAMESPACE/POD or exec:'COMMAND'.
    #[arg(value_name = "URL|TARGET")]
    pub(crate) url: Option<String>,

    /// URL of its hub: http://HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub(crate) hub: Option<String>,

    /// Invite of a hub: the line that `exec-server hub invite --role harness` prints.
    #[arg(long, value_name = "LINE", conflicts_with_all = ["token_file", "token_env"])]
    pub(crate) invite: Option<String>,

    /// Id of the environment at the hub [default: that of the invite, else NAME].
    #[arg(long, value_name = "ID", conflicts_with_all = ["url", "command"])]
    pub(crate) environment_id: Option<String>,

    /// File with the token for the server or hub.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["token_env", "command"])]
    pub(crate) token_file: Option<PathBuf>,

    /// Variable with the token for the server or hub.
    #[arg(long, value_name = "VARIABLE", conflicts_with = "command")]
    pub(crate) token_env: Option<String>,

    /// Makes it the default environment.
    #[arg(long)]
    pub(crate) default: bool,

    /// Command that is started on demand, with all its arguments.
    #[arg(
        long,
        value_name = "COMMAND",
        num_args = 1..,
        allow_hyphen_values = true
    )]
    pub(crate) command: Vec<String>,
}

impl EnvAddCommand {
    /// Adds the environment to the file, after redeeming an invite.
    async fn run(mut self) -> Result<ExitCode, CommandFailure> {
        let lookup = &|name: &str| std::env::var_os(name);
        if let Some(line) = self.invite.take() {
            self.redeem(&line, lookup).await?;
        }
        self.add(lookup)
    }

    /// Redeems an invite if the environment can be added, and fills in hub and token.
    async fn redeem(
        &mut self,
        line: &str,
        lookup: VariableLookup<'_>,
    ) -> Result<(), CommandFailure> {
        let invite = read_invite(line, InviteRole::Harness)?;
        let id = self.id()?;
        Self::check_new(&EnvironmentsFile::open(lookup)?, &id)?;
        let is_pattern = invite.name.contains(['*', '?', '[', '{']);
        if self.environment_id.is_none() && !is_pattern {
            self.environment_id = Some(invite.name.clone());
        }
        let redeemed = redeem_invite(&invite, lookup).await?;
        self.hub = Some(redeemed.hub.to_string());
        self.token_file = Some(redeemed.token_file);
        Ok(())
    }

    fn id(&self) -> Result<EnvironmentId, CommandFailure> {
        EnvironmentId::parse_user_defined(&self.name).map_err(CommandFailure::usage)
    }

    /// Checks that the file has no environment with this id.
    fn check_new(file: &EnvironmentsFile, id: &EnvironmentId) -> Result<(), CommandFailure> {
        if ids(&file.text).iter().all(|other| other != id.as_str()) {
            return Ok(());
        }
        let what = format!("`{id}` already exists in `{}`", file.path.display());
        Err(CommandFailure::failed(what)
            .next(format!("remove it first: exec-server env remove {id}")))
    }

    fn add(self, lookup: VariableLookup<'_>) -> Result<ExitCode, CommandFailure> {
        let id = self.id()?;
        if self.hub.is_some() && self.token_file.is_none() && self.token_env.is_none() {
            return Err(CommandFailure::usage("a hub requires a token".to_owned())
                .next("pass --token-file FILE or --token-env VARIABLE"));
        }
        let file = EnvironmentsFile::open(lookup)?;
        Self::check_new(&file, &id)?;
        let before = ids(&file.text);
        let mut text = appended(&file.text, &self.keys()?);
        if self.default {
            text = with_default(&text, id.as_str());
        }
        file.parse_text(&text, lookup).map_err(|error| {
            // The file ends in a way that nothing can be appended.
            if matches!(error.fault, EnvironmentsFault::Syntax(_)) {
                return CommandFailure::new(FailureKind::UnknownEnvironment, error)
                    .next("edit it by hand");
            }
            // The existing content is valid, so the new entry is not.
            CommandFailure::usage(format!("cannot add `{id}`: {}", error.fault))
                .next("`exec-server env add --help` shows examples")
        })?;
        if ids(&text).len() != before.len() + 1 {
            let what = format!("cannot append to `{}`", file.path.display());
            return Err(CommandFailure::failed(what).next("edit it by hand"));
        }
        let hides = file.base.remotes.iter().any(|other| other.id == id);
        file.replace(&text)?;
        if hides {
            print_stderr(&format!(
                "note: it overrides `{id}` from the settings of Codex"
            ));
        }
        let selected = select(lookup)?;
        if selected.remotes.iter().all(|other| other.id != id) {
            print_stderr("note: variables select the environments at present, not the file");
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Returns the keys to write.
    fn keys(&self) -> Result<Vec<(&'static str, Value)>, CommandFailure> {
        let text = |text: &str| Value::String(text.to_owned());
        let mut keys = vec![("id", text(&self.name))];
        if let Some(url) = &self.url {
            let key = match Target::is_target(url) {
                true => "target",
                false => "url",
            };
            keys.push((key, text(url)));
        }
        if let Some(hub) = &self.hub {
            keys.push(("registry_url", text(hub)));
        }
        if let Some(id) = &self.environment_id {
            keys.push(("environment_id", text(id)));
        }
        if let Some(variable) = &self.token_env {
            keys.push(("auth_token_env", text(variable)));
        }
        if let Some(path) = &self.token_file {
            // Paths in the file are relative to the file.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let path = path.to_str().ok_or_else(|| {
                let what = format!("path `{}` is not UTF-8", path.display());
                CommandFailure::usage(what)
            })?;
            keys.push(("auth_token_file", text(path)));
        }
        if let [program, args @ ..] = &self.command[..] {
            keys.push(("program", text(program)));
            let args = args.iter().map(|arg| text(arg)).collect();
            keys.push(("args", Value::Array(args)));
        }
        Ok(keys)
    }
}

const USAGE: &str = "\
exec-server env add [OPTIONS] <NAME> <URL>
       exec-server env add [OPTIONS] <NAME> <TARGET>
       exec-server env add [OPTIONS] <NAME> --hub <URL>
       exec-server env add [OPTIONS] <NAME> --invite <LINE>
       exec-server env add [OPTIONS] <NAME> --command <COMMAND>...";

const EXAMPLES: &str = "\
Examples:
  exec-server env add devbox wss://devbox.example:8443 --token-file ~/.devbox-token --default
  exec-server env add dev ssh:me@dev.example
  exec-server env add web ssh:box/docker:web
  exec-server env add box --hub https://hub.example --token-file ~/.hub-token
  exec-server env add box --invite exec-invite-…
  exec-server env add build --command ssh build.example exec-server --listen stdio";

/// Removes an environment from our environments.toml.
#[derive(Args, Clone, Debug)]
pub(crate) struct EnvRemoveCommand {
    /// Name of the environment.
    pub(crate) name: String,
}

impl EnvRemoveCommand {
    /// Removes the environment from the file.
    fn run(self) -> Result<ExitCode, CommandFailure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let name = self.name.as_str();
        let file = EnvironmentsFile::open(lookup)?;
        let displayed = file.path.display();
        let Some(index) = ids(&file.text).iter().position(|id| id == name) else {
            let mut others = file.base.remotes.iter();
            return Err(match others.any(|other| other.id.as_str() == name) {
                true => {
                    let what = format!("`{name}` comes from the settings of Codex");
                    CommandFailure::failed(what)
                        .next("exec-server does not change those; remove it there by hand")
                }
                false => {
                    let what = format!("`{displayed}` has no environment `{name}`");
                    CommandFailure::new(FailureKind::UnknownEnvironment, what)
                        .next("`exec-server env list` shows the known environments")
                }
            });
        };
        let Some(text) = without(&file.text, index) else {
            let what = format!("cannot determine which lines of `{displayed}` define `{name}`");
            return Err(CommandFailure::failed(what).next("remove them by hand"));
        };
        if let Err(error) = file.parse_text(&text, lookup) {
            let is_default = matches!(error.fault, EnvironmentsFault::UnknownDefault(_));
            return Err(match is_default {
                true => CommandFailure::failed(format!("`{name}` is the default environment"))
                    .next("choose another one first: exec-server env default local"),
                false => CommandFailure::failed(error),
            });
        }
        file.replace(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Sets the default environment.
#[derive(Args, Clone, Debug)]
pub(crate) struct EnvDefaultCommand {
    /// Name from `env list`, `local`, or `none`.
    pub(crate) name: String,
}

impl EnvDefaultCommand {
    /// Writes the default to the file.
    fn run(self) -> Result<ExitCode, CommandFailure> {
        let lookup = &|name: &str| std::env::var_os(name);
        let file = EnvironmentsFile::open(lookup)?;
        let text = with_default(&file.text, &self.name);
        file.parse_text(&text, lookup)
            .map_err(|error| CommandFailure::new(FailureKind::UnknownEnvironment, error))?;
        file.replace(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
