//! Arguments of a command's execution: directory, variables, sandbox, limits.

use std::{collections::BTreeMap, ffi::OsString, str::FromStr};

use clap::{Args, ValueEnum};
use exec_env::environment::{Command, ProcessIo};
use exec_wire::{
    network::{ManagedNetwork, NetworkProxy},
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy},
    sandbox::{
        EntryAccess, EntryPath, FileSystemPolicy, MissingPathBehavior, NetworkAccess, SandboxEntry,
        SandboxPermissions, SandboxPolicy, SpecialPath, WindowsSandboxLevel,
    },
};

use crate::{
    command::{
        connect::{ConnectedEnv, working_directory},
        failure::CommandFailure,
        quantity::ByteSizeArg,
    },
    terminal_detection::DetectedTerminal,
};

/// Directory, variables, sandbox and limits of a command.
#[derive(Args, Clone, Debug, Default)]
pub struct ExecArgs {
    /// Working directory [default: the current one on this machine; elsewhere the server's].
    #[arg(short = 'C', long, value_name = "DIR")]
    pub cwd: Option<String>,

    /// Sets a variable, repeatable; without a value, passes the local one.
    ///
    /// On this machine a command has all local variables; elsewhere it has the server's, and on a
    /// terminal also the local TERM, COLORTERM and locale.
    #[arg(short = 'e', long = "set-env", value_name = "NAME[=VALUE]")]
    pub variables: Vec<VariableArg>,

    /// Runs the command in a sandbox. Everything is readable; the network is closed.
    #[arg(long, value_name = "POLICY")]
    pub sandbox: Option<SandboxChoice>,

    /// Allows a sandboxed command network access: everything the host reaches (full, the default);
    /// only servers on the host's loopback, through a proxy that its environment names (loopback);
    /// or only a private loopback, whose servers a tunnel reaches (private, implied by --tunnel).
    #[arg(
        long, value_name = "REACH", num_args = 0..=1, require_equals = true,
        default_missing_value = "full", requires = "sandbox"
    )]
    pub network: Option<NetworkChoice>,

    /// Lets a sandboxed command write below another directory, repeatable.
    #[arg(long, value_name = "DIR", requires = "sandbox")]
    pub writable: Vec<String>,

    /// Lets a sandboxed command with a writable directory write `.git` in it.
    ///
    /// It is protected otherwise, because its hooks and settings run commands outside the sandbox.
    #[arg(long, requires = "sandbox")]
    pub allow_git: bool,

    /// Memory limit of the process tree, such as 512M.
    #[arg(long, value_name = "SIZE")]
    pub limit_memory: Option<ByteSizeArg>,
}

/// What a sandboxed command may write.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum SandboxChoice {
    /// Nothing.
    ReadOnly,
    /// Its working directory and temporary directories.
    WorkspaceWrite,
}

/// Network access of a sandboxed command.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub enum NetworkChoice {
    /// Everything the host reaches.
    Full,
    /// Servers on the host's loopback.
    Loopback,
    /// A loopback without other processes.
    Private,
}

/// Variable to set.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct VariableArg {
    name: String,
    value: Option<String>,
}

impl FromStr for VariableArg {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        if name.is_empty() || text.contains('\0') {
            return Err("expected NAME=VALUE, or the NAME of a local variable");
        }
        Ok(Self {
            name: name.to_owned(),
            value,
        })
    }
}

impl ExecArgs {
    /// Returns the working directory.
    pub(crate) async fn directory(&self, env: &ConnectedEnv) -> Result<PathUri, CommandFailure> {
        if let Some(typed) = &self.cwd {
            return env.path(typed).await;
        }
        if env.is_this_machine {
            let directory = working_directory();
            let directory = directory.map_err(|failure| failure.next("choose one with -C"))?;
            return PathUri::from_native(&directory).map_err(CommandFailure::failed);
        }
        let info = &env.info;
        let directory = info.cwd.clone().or_else(|| info.user_home_dir.clone());
        directory.ok_or_else(|| {
            let what = format!("`{}` reports no working directory", env.name);
            CommandFailure::failed(what).next("choose one with -C")
        })
    }

    /// Applies the arguments to a command.
    pub(super) async fn apply(
        &self,
        command: &mut Command,
        env: &ConnectedEnv,
    ) -> Result<(), CommandFailure> {
        let local_variables = || std::env::vars_os().filter_map(text);
        if env.is_this_machine {
            command.env = local_variables().collect();
        } else {
            command.env_policy = Some(INHERIT_ALL);
        }
        if matches!(command.io, ProcessIo::Terminal(_)) {
            let terminal = DetectedTerminal::detect(&|name| std::env::var_os(name)).pty_variables();
            let of_terminal = terminal
                .pairs()
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let of_locale = local_variables().filter(|(name, _)| is_of_locale(name));
            // On this machine, the local variables apply already.
            for (name, value) in of_terminal.chain(of_locale) {
                command.env.entry(name).or_insert(value);
            }
        }
        for VariableArg { name, value } in &self.variables {
            let value = value.clone().or_else(|| std::env::var(name).ok());
            if let Some(value) = value {
                command.env.insert(name.clone(), value);
            }
        }
        command.limits.memory_bytes = self.limit_memory.map(|ByteSizeArg(bytes)| bytes);
        if let Some(choice) = self.sandbox {
            let mut writable = Vec::new();
            for typed in &self.writable {
                writable.push(env.path(typed).await?);
            }
            let sandbox = self.apply_sandbox(choice, &command.cwd, writable, env);
            command.sandbox = Some(Box::new(sandbox));
            match self.network {
                Some(NetworkChoice::Loopback) => {
                    command.network.proxy = Some(NetworkProxy::for_loopback());
                }
                Some(NetworkChoice::Private) => command.network.managed = Some(private_loopback()),
                Some(NetworkChoice::Full) | None => {}
            }
        }
        Ok(())
    }

    fn apply_sandbox(
        &self,
        choice: SandboxChoice,
        cwd: &PathUri,
        writable: Vec<PathUri>,
        env: &ConnectedEnv,
    ) -> SandboxPolicy {
        let entry = |path, access| SandboxEntry {
            path,
            access,
            missing_path_behavior: Some(MissingPathBehavior::Skip),
        };
        let special = |value, access| entry(EntryPath::Special { value }, access);
        let mut entries = vec![special(SpecialPath::Root, EntryAccess::Read)];
        if choice == SandboxChoice::WorkspaceWrite {
            let written = [
                SpecialPath::ProjectRoots { subpath: None },
                SpecialPath::Tmpdir,
                SpecialPath::SlashTmp,
            ];
            entries.extend(written.map(|path| special(path, EntryAccess::Write)));
            if self.allow_git {
                let subpath = Some(".git".to_owned());
                entries.push(special(
                    SpecialPath::ProjectRoots { subpath },
                    EntryAccess::Write,
                ));
            }
        }
        let writable = writable.into_iter().map(|path| EntryPath::Path { path });
        entries.extend(writable.map(|path| entry(path, EntryAccess::Write)));
        SandboxPolicy {
            permissions: SandboxPermissions::Managed {
                file_system: FileSystemPolicy::Restricted {
                    entries,
                    glob_scan_max_depth: None,
                },
                network: match self.network {
                    Some(NetworkChoice::Full) => NetworkAccess::Enabled,
                    Some(NetworkChoice::Loopback | NetworkChoice::Private) | None => {
                        NetworkAccess::Restricted
                    }
                },
            },
            cwd: Some(cwd.clone()),
            workspace_roots: vec![cwd.clone()],
            policy_context: None,
            user_home_dir: env.info.user_home_dir.clone(),
            temporary_directories: env.info.temporary_directories.clone(),
            windows_sandbox_level: WindowsSandboxLevel::Disabled,
            windows_sandbox_proxy_settings_mode: None,
            use_legacy_landlock: false,
            sandbox_override: None,
        }
    }
}

/// Lets a command in a sandbox without network listen, and connect to itself.
pub(super) fn private_loopback() -> ManagedNetwork {
    ManagedNetwork {
        allow_local_binding: true,
        ..ManagedNetwork::default()
    }
}

/// A user's command inherits the environment of the user who started the server.
const INHERIT_ALL: EnvPolicy = EnvPolicy {
    inherit: EnvInherit::All,
    ignore_default_excludes: true,
    exclude: Vec::new(),
    set: BTreeMap::new(),
    include_only: Vec::new(),
};

/// Converts a variable for the wire, which carries text only.
fn text((name, value): (OsString, OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// Returns whether a variable belongs to the locale.
fn is_of_locale(name: &str) -> bool {
    matches!(name, "LANG" | "LANGUAGE") || name.starts_with("LC_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variable_argument_has_a_name_and_an_optional_value() {
        let set = |name: &str, value: Option<&str>| {
            Ok(VariableArg {
                name: name.to_owned(),
                value: value.map(str::to_owned),
            })
        };
        assert_eq!("A=b=c".parse(), set("A", Some("b=c")));
        assert_eq!("A=".parse(), set("A", Some("")));
        assert_eq!("A".parse(), set("A", None));
        for wrong in ["", "=a", "A=\0"] {
            assert!(wrong.parse::<VariableArg>().is_err(), "{wrong:?}");
        }
    }
}
