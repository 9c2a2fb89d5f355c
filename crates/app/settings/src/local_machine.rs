//! This machine as an environment, for sessions of a server or for a harness in this process.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    path::{self, Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use exec_core::output_log::RetentionLimits;
use exec_env::{durable::DurableState, environment::Environment, filesystem::ExecutorFileSystem};
use exec_journal::StateDir;
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    catalog::{CatalogConfig, LocalCatalog},
    durable_state::LocalDurableState,
    filesystem::LocalFileSystem,
    host::{HostDescription, HostFacts},
    http_client::LocalHttpClient,
    local_network::LocalNetwork,
};
use exec_process::{DurableStore, spawner::Spawner};
use exec_wire::limits;
use tokio::{task::spawn_blocking, time::sleep};

use crate::{local_socket::LocalSocket, settings_source::CodexHome};

/// Returns this machine as an environment, without a server.
///
/// Starts nothing before the first command. Commands inherit the environment of this process, as
/// their policies say.
///
/// # Errors
/// When the working directory or the helper cannot be found.
pub fn local_environment(paths: &ExecServerRuntimePaths) -> anyhow::Result<Environment> {
    let machine = LocalMachine::new(paths)?;
    Ok(machine.environment())
}

/// Settings of this machine as an environment.
#[derive(Debug)]
pub struct LocalMachineSettings {
    /// Retained output per process, in bytes.
    pub retained_output_bytes: usize,
    /// Sandbox settings.
    pub sandbox: exec_sandbox::SandboxSettings,
    /// Files that no sandbox may write or replace, besides the directory of the local socket.
    pub protected: Vec<PathBuf>,
    /// State directory of durable processes.
    pub state: Option<StateDir>,
    /// What happens to a missing directory of the local socket.
    pub socket_directory: SocketDirectory,
}

/// What happens to a missing directory of the local socket.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SocketDirectory {
    /// It is created, so that no sandboxed command creates it before a server listens there.
    #[default]
    Created,
    /// It stays missing.
    IfPresent,
}

impl Default for LocalMachineSettings {
    fn default() -> Self {
        Self {
            retained_output_bytes: limits::RETAINED_OUTPUT_BYTES,
            sandbox: exec_sandbox::SandboxSettings::default(),
            protected: Vec::new(),
            state: None,
            socket_directory: SocketDirectory::default(),
        }
    }
}

/// Backend, files, HTTP client and catalog of this machine.
#[derive(Clone, Debug)]
pub struct LocalMachine {
    backend: LocalBackend,
    files: LocalFileSystem,
    http: LocalHttpClient,
    catalog: LocalCatalog,
    durable: Option<DurableStore>,
}

impl LocalMachine {
    /// Inspects the machine and the environment of this process. Starts nothing.
    pub fn new(paths: &ExecServerRuntimePaths) -> anyhow::Result<Self> {
        let files = LocalFileSystem::default();
        Self::with_files(files, LocalMachineSettings::default(), paths)
    }

    /// Like [`LocalMachine::new`], but limits file reads to what clients accept.
    pub fn for_a_server(
        settings: LocalMachineSettings,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        Self::with_files(LocalFileSystem::for_server(), settings, paths)
    }

    fn with_files(
        files: LocalFileSystem,
        mut settings: LocalMachineSettings,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        let helper = find_helper(paths)?;
        let lookup = &|name: &str| std::env::var_os(name);
        let mut protected = match settings.socket_directory {
            SocketDirectory::Created => LocalSocket::protected_directories(lookup),
            SocketDirectory::IfPresent => LocalSocket::existing_directories(lookup),
        };
        protected.extend_from_slice(&settings.protected);
        let config = config(&settings)?;
        let http = LocalHttpClient::new(config.env.clone());
        let catalog_paths = CatalogPaths::find(&config);
        let backend = LocalBackend::with_spawner(config, Spawner::with_program(&helper));
        let durable = settings.state.take();
        let durable = durable.map(|state| DurableStore::new(state, &helper));
        let backend = backend.with_protected_paths(protected);
        let backend = match &durable {
            Some(store) => backend.with_durable_store(store.clone()),
            None => backend,
        };
        let files = files.with_policies(&backend);
        Ok(Self {
            catalog: catalog_paths.catalog(Arc::new(files.clone())),
            files,
            backend,
            http,
            durable,
        })
    }

    /// Keeps the state directory within its limits of age and size. Never returns if there is one.
    pub async fn clean_state(&self) {
        let Some(store) = self.durable.clone() else {
            return;
        };
        loop {
            sleep(CLEANUP_INTERVAL).await;
            let store = store.clone();
            if let Err(error) = spawn_blocking(move || store.enforce_limits()).await {
                tracing::warn!(%error, "failed to clean up the state directory");
            }
        }
    }

    /// Returns the store of durable processes, if a state directory is configured.
    pub fn durable_store(&self) -> Option<&DurableStore> {
        self.durable.as_ref()
    }

    /// Returns the state that outlives this process, if a state directory is configured.
    pub fn durable_state(&self) -> Option<Arc<dyn DurableState>> {
        let store = self.durable.clone()?;
        Some(Arc::new(LocalDurableState::new(store)))
    }

    /// Starts what the first command would otherwise wait for.
    pub async fn warm_up(&self) {
        self.backend.warm_up().await;
    }

    /// Returns an environment for one session or harness.
    pub fn environment(&self) -> Environment {
        let backend = self.backend.clone();
        let network = LocalNetwork::new(&backend);
        Environment {
            backend: Arc::new(backend),
            files: Arc::new(self.files.clone()),
            http: Arc::new(self.http.clone()),
            catalog: Arc::new(self.catalog.clone()),
            network: Arc::new(network),
        }
    }
}

/// How often the state directory is checked against its limits.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(300);

/// Finds the helper executable.
fn find_helper(paths: &ExecServerRuntimePaths) -> anyhow::Result<PathBuf> {
    let missing = || {
        format!(
            "cannot find the helper program `{}`",
            paths.helper.display()
        )
    };
    let helper = path::absolute(&paths.helper).with_context(missing)?;
    std::fs::metadata(&helper).with_context(missing)?;
    Ok(helper)
}

fn config(settings: &LocalMachineSettings) -> anyhow::Result<LocalConfig> {
    let env = std::env::vars_os().filter(|(name, _)| !is_for_service(name));
    let env: BTreeMap<_, _> = env.collect();
    let cwd = std::env::current_dir().context("cannot determine the working directory")?;
    // Without the file, shell and home come from the environment.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let host = HostDescription::new(&HostFacts {
        env: &env,
        passwd: &passwd,
        uid: rustix::process::getuid().as_raw(),
        cwd: &cwd,
        exists: &|path: &Path| path.exists(),
    });
    Ok(LocalConfig {
        env,
        host,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        retention: RetentionLimits {
            bytes: settings.retained_output_bytes,
            chunks: limits::RETAINED_OUTPUT_CHUNKS,
        },
        sandbox: settings.sandbox,
    })
}

/// Returns whether a variable lets its reader speak to the service manager for this process.
fn is_for_service(name: &OsStr) -> bool {
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]
        .iter()
        .any(|own| *own == name)
}

/// System-wide configuration directory.
const SYSTEM: &str = "/etc/codex";

/// Directories of configuration, plugins and skills.
#[derive(Debug)]
struct CatalogPaths {
    codex_home: PathBuf,
    user_home: Option<PathBuf>,
    hostname: Option<String>,
}

impl CatalogPaths {
    /// Finds the directories. Without a home, uses the root directory.
    fn find(config: &LocalConfig) -> Self {
        let user_home = config.host.home.clone();
        // Only the variable counts: the account's home may be known without `HOME`.
        let variable = CodexHome::find(&|name| match name {
            "CODEX_HOME" => config.env.get(OsStr::new(name)).cloned(),
            _ => None,
        });
        let codex_home = match variable {
            Some(variable) => without_links(variable.path()),
            None => user_home
                .as_deref()
                .unwrap_or(Path::new("/"))
                .join(".codex"),
        };
        let system = rustix::system::uname();
        let hostname = system.nodename().to_str().ok();
        Self {
            codex_home,
            user_home,
            hostname: hostname.map(str::to_owned),
        }
    }

    /// Builds a catalog that reads through `files`.
    fn catalog(self, files: Arc<dyn ExecutorFileSystem>) -> LocalCatalog {
        LocalCatalog::new(CatalogConfig {
            files,
            codex_home: self.codex_home,
            user_home: self.user_home,
            system: PathBuf::from(SYSTEM),
            hostname: self.hostname,
        })
    }
}

fn without_links(path: &Path) -> PathBuf {
    let absolute = || path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.canonicalize().unwrap_or_else(|_| absolute())
}

/// Executables that run commands and file operations for a server, or for a local environment.
///
/// There is one: started under their names, it becomes the spawner of commands, or the helper for
/// file operations under a sandbox policy. Every program that links this crate can be the helper,
/// because it checks its name before `main`. An embedder passes
/// [`ExecServerRuntimePaths::default`], unless its code is a library in another program, such as an
/// interpreter's extension: then it passes the path of an `exec-server` of the same version.
///
/// With a C library that passes no arguments to initialisers, such as musl, the program calls
/// [`run_if_helper`] first in `main`.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct ExecServerRuntimePaths {
    /// Executable to start as spawner and as helper.
    pub helper: PathBuf,
}

impl ExecServerRuntimePaths {
    /// Uses another program as the helper.
    pub fn with_helper(helper: impl Into<PathBuf>) -> Self {
        Self {
            helper: helper.into(),
        }
    }
}

impl Default for ExecServerRuntimePaths {
    /// Uses this program as its own helper, even after its file was replaced or removed.
    fn default() -> Self {
        Self::with_helper(THIS_PROGRAM)
    }
}

/// Runs as spawner or helper and never returns, if this process was started as one. Not needed with
/// glibc, where it runs before `main`.
pub fn run_if_helper() {
    exec_spawn::spawner::run_if_spawner();
    exec_sandbox::sandboxed_fs::run_if_fs_worker();
}

/// Executable of this process.
const THIS_PROGRAM: &str = "/proc/self/exe";
