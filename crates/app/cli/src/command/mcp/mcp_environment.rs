//! The environment that `exec-server mcp` works in.
//!
//! Invariant: on this machine, commands have the working directory, the variables and the
//! temporary directories of this process, whether or not the background server starts them.

use std::{
    collections::BTreeMap,
    path::{self, Path, PathBuf},
    sync::Arc,
};

use exec_env::environment::Environment;
use exec_local::{
    env_policy::child_environment,
    host::{HostDescription, HostFacts},
};
use exec_settings::local_machine::{ExecServerRuntimePaths, local_environment};
use exec_tools::{
    mcp::{AgentWorkspace, McpToolsOptions, NetworkMode, WorkspaceAccess},
    unified::CommandStore,
};
use exec_wire::{
    environment::{EnvironmentInfo, ServerCapabilities},
    path_uri::PathUri,
    process::{EnvInherit, EnvPolicy, ProcessMetadata},
};

use super::detached_commands::DetachedCommands;
use crate::command::{
    connect::{ConnectedEnv, EnvArgs, working_directory},
    failure::{CommandFailure, FailureKind},
    process_session::print_notice,
};

/// Environment of the tools, and how its paths are resolved.
#[derive(Debug)]
pub(super) struct McpEnvironment {
    /// Where commands run and files are.
    pub(super) environment: Environment,
    /// Where commands live, and what they inherit.
    pub(super) options: McpToolsOptions,
    info: EnvironmentInfo,
    /// Resolves paths. `None`: this machine.
    remote: Option<ConnectedEnv>,
}

impl McpEnvironment {
    /// Opens the environment: the named one, that of the working directory, or this machine through
    /// its background server.
    ///
    /// If the background server cannot be reached and `--env` does not name this machine, commands
    /// run in this process: that is the same machine, and only their durability is lost.
    pub(super) async fn open(env_args: &EnvArgs, in_process: bool) -> Result<Self, CommandFailure> {
        let (env_args, _) = &env_args.with_directory(&|name| std::env::var_os(name));
        let name = env_args.env.as_deref().filter(|name| !name.is_empty());
        match name.filter(|name| *name != LOCAL) {
            Some(name) if in_process => {
                let what = format!("--in-process works on this machine, not in `{name}`");
                Err(CommandFailure::usage(what))
            }
            Some(_) => Ok(Self::remote(ConnectedEnv::open_unattended(env_args).await?)),
            None if in_process => Self::in_process().await,
            None => match ConnectedEnv::open_local(env_args).await {
                Ok(env) => Self::this_machine(&env),
                Err(failure) if name.is_none() => {
                    print_notice(&format!(
                        "commands will end with this process, as with --in-process: {}",
                        failure.what
                    ));
                    Self::in_process().await
                }
                Err(failure) => Err(failure),
            },
        }
    }

    /// This machine, in this process.
    async fn in_process() -> Result<Self, CommandFailure> {
        let environment = local_environment(&ExecServerRuntimePaths::default())
            .map_err(|error| CommandFailure::failed(format!("{error:#}")))?;
        let info = environment.backend.info().await;
        let info = info.map_err(|error| CommandFailure::failed(error.message))?;
        Ok(Self {
            environment,
            options: McpToolsOptions::default(),
            info,
            remote: None,
        })
    }

    /// This machine, through its background server. The server may have been started by another
    /// program in another environment, so that facts and variables are those of this process.
    fn this_machine(env: &ConnectedEnv) -> Result<Self, CommandFailure> {
        let info = describe_machine()?;
        Ok(Self {
            environment: env.environment(),
            options: McpToolsOptions {
                store: store(env),
                env_policy: Some(own_variables()),
            },
            info,
            remote: None,
        })
    }

    fn remote(env: ConnectedEnv) -> Self {
        Self {
            environment: env.environment(),
            options: McpToolsOptions {
                store: store(&env),
                env_policy: None,
            },
            info: env.info.clone(),
            remote: Some(env),
        }
    }

    /// Builds the workspace.
    pub(super) async fn workspace(
        &self,
        directories: &[PathBuf],
        access: WorkspaceAccess,
        network: NetworkMode,
    ) -> Result<AgentWorkspace, CommandFailure> {
        let mut roots = self.paths(directories).await?;
        if roots.is_empty() {
            roots.push(self.default_root().await?);
        }
        let root = roots.remove(0);
        let workspace = AgentWorkspace::new(root, access, network);
        Ok(workspace.with_more(roots).on(&self.info))
    }

    /// Resolves typed directories.
    pub(super) async fn paths(&self, typed: &[PathBuf]) -> Result<Vec<PathUri>, CommandFailure> {
        let mut paths = Vec::new();
        for typed in typed {
            paths.push(self.path(typed).await?);
        }
        Ok(paths)
    }

    async fn path(&self, typed: &PathBuf) -> Result<PathUri, CommandFailure> {
        if let Some(env) = &self.remote {
            return env.path(typed).await;
        }
        let wrong = |error: &dyn std::fmt::Display| {
            let what = format!("directory `{}`: {error}", typed.display());
            CommandFailure::usage(what)
        };
        let absolute = path::absolute(typed).map_err(|error| wrong(&error))?;
        if !absolute.is_dir() {
            let what = format!("`{}` is not a directory", typed.display());
            return Err(CommandFailure::new(FailureKind::NotFound, what)
                .next("--workspace and --writable take existing directories"));
        }
        PathUri::from_native(&absolute).map_err(|error| wrong(&error))
    }

    async fn default_root(&self) -> Result<PathUri, CommandFailure> {
        if self.remote.as_ref().is_none_or(|env| env.is_this_machine) {
            return self.path(&PathBuf::from(".")).await;
        }
        let info = &self.info;
        let directory = info.cwd.clone().or_else(|| info.user_home_dir.clone());
        directory.ok_or_else(|| {
            CommandFailure::failed("the server reports no working directory")
                .next("set --workspace")
        })
    }
}

/// Name of this machine in `--env`.
const LOCAL: &str = "local";

fn store(env: &ConnectedEnv) -> Option<Arc<dyn CommandStore>> {
    let store = DetachedCommands::of(&env.client)?;
    Some(Arc::new(store))
}

/// Describes this machine as this process sees it.
///
/// A backend of this process would say the same, but its spawner must not run beside the background
/// server: what a spawner leaves behind is killed, and so would be the server that this process has
/// started.
fn describe_machine() -> Result<EnvironmentInfo, CommandFailure> {
    let cwd = working_directory()?;
    let host = HostDescription::new(&HostFacts {
        env: &std::env::vars_os().collect(),
        // Without the file, shell and home come from the environment.
        passwd: &std::fs::read_to_string("/etc/passwd").unwrap_or_default(),
        uid: rustix::process::getuid().as_raw(),
        cwd: &cwd,
        exists: &|path: &Path| path.exists(),
    });
    let version = env!("CARGO_PKG_VERSION");
    Ok(host.environment_info(version, ServerCapabilities::default()))
}

/// Returns a policy that gives commands the variables of this process, without secrets, as they
/// would inherit them from it. Variables that are not UTF-8 are left out.
fn own_variables() -> EnvPolicy {
    let mut policy = EnvPolicy {
        inherit: EnvInherit::All,
        ignore_default_excludes: false,
        exclude: Vec::new(),
        set: BTreeMap::new(),
        include_only: Vec::new(),
    };
    let host = std::env::vars_os().collect();
    let (none, metadata) = (BTreeMap::new(), ProcessMetadata::default());
    let inherited = child_environment(&host, Some(&policy), &none, &metadata);
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    policy.inherit = EnvInherit::None;
    policy.set = inherited.into_iter().filter_map(text).collect();
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_inherit_the_variables_of_this_process_without_secrets() {
        let policy = own_variables();
        assert_eq!(policy.inherit, EnvInherit::None);
        assert_eq!(policy.set.get("PATH"), std::env::var("PATH").ok().as_ref());
        let is_secret = |name: &String| name.ends_with("_TOKEN") || name.ends_with("_SECRET");
        assert!(!policy.set.keys().any(is_secret), "{:?}", policy.set.keys());
    }
}
