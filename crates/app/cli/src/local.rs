//! This machine as an environment: for the sessions of a server, or for a harness in this process.

use std::{
    collections::BTreeMap,
    path::{self, Path, PathBuf},
    sync::Arc,
};

use anyhow::Context;
use exec_core::log::Retention;
use exec_env::environment::Environment;
use exec_local::{
    backend::{LocalBackend, LocalConfig},
    catalog::LocalCatalog,
    filesystem::LocalFileSystem,
    host::{Host, HostFacts},
    http_client::LocalHttpClient,
};
use exec_process::spawner::Spawner;
use exec_wire::limits;

use crate::{catalog::Places, command::LocalSocket, paths::ExecServerRuntimePaths};

/// Makes this machine an environment, without a server in between.
///
/// Nothing is started before the first command. The environment of this process is what commands
/// inherit from, as their policies say.
///
/// # Errors
/// When the working directory or the helper cannot be found.
pub fn local_environment(paths: &ExecServerRuntimePaths) -> anyhow::Result<Environment> {
    let machine = LocalMachine::new(paths)?;
    Ok(machine.environment())
}

/// What is settled about this machine before anything runs on it.
#[derive(Clone, Debug)]
pub struct LocalSettings {
    /// Output kept of each process, in bytes.
    pub retained_output_bytes: usize,
    /// How policies are enforced.
    pub sandbox: exec_sandbox::Settings,
    /// Files that no sandbox may write or replace, beside the directory of this machine's own socket.
    pub protected: Vec<PathBuf>,
}

impl Default for LocalSettings {
    fn default() -> Self {
        Self {
            retained_output_bytes: limits::RETAINED_OUTPUT_BYTES,
            sandbox: exec_sandbox::Settings::default(),
            protected: Vec::new(),
        }
    }
}

/// What runs commands, works on files, makes requests and knows the configuration on this machine.
#[derive(Clone, Debug)]
pub struct LocalMachine {
    backend: LocalBackend,
    files: LocalFileSystem,
    http: LocalHttpClient,
    catalog: LocalCatalog,
}

impl LocalMachine {
    /// Looks at the machine and at the environment of this process. Starts nothing.
    pub fn new(paths: &ExecServerRuntimePaths) -> anyhow::Result<Self> {
        let files = LocalFileSystem::default();
        Self::with_files(files, LocalSettings::default(), paths)
    }

    /// As [`LocalMachine::new`], but reads no more of files than clients take.
    pub fn for_a_server(
        settings: LocalSettings,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        Self::with_files(LocalFileSystem::for_a_server(), settings, paths)
    }

    fn with_files(
        files: LocalFileSystem,
        settings: LocalSettings,
        paths: &ExecServerRuntimePaths,
    ) -> anyhow::Result<Self> {
        let helper = find_helper(paths)?;
        let mut protected = LocalSocket::protected_directories(&|name| std::env::var_os(name));
        protected.extend_from_slice(&settings.protected);
        let config = config(&settings)?;
        let http = LocalHttpClient::new(config.env.clone());
        let places = Places::find(&config);
        let backend = LocalBackend::with_spawner(config, Spawner::of(&helper));
        let backend = backend.protecting(protected);
        let files = files.with_policies_of(&backend);
        Ok(Self {
            catalog: places.catalog(Arc::new(files.clone())),
            files,
            backend,
            http,
        })
    }

    /// Starts what the first command would otherwise wait for.
    pub async fn warm_up(&self) {
        self.backend.warm_up().await;
    }

    /// Makes an environment of its own for one session, or for one harness.
    pub fn environment(&self) -> Environment {
        Environment {
            backend: Arc::new(self.backend.clone()),
            files: Arc::new(self.files.clone()),
            http: Arc::new(self.http.clone()),
            catalog: Arc::new(self.catalog.clone()),
        }
    }
}

/// Finds what is started as spawner and as helper, from wherever it is started.
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

fn config(settings: &LocalSettings) -> anyhow::Result<LocalConfig> {
    let env: BTreeMap<_, _> = std::env::vars_os().collect();
    let cwd = std::env::current_dir().context("cannot find the working directory")?;
    // Without the file, the shell and the home come from the environment.
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let host = Host::new(&HostFacts {
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
        retention: Retention {
            bytes: settings.retained_output_bytes,
            chunks: limits::RETAINED_OUTPUT_CHUNKS,
        },
        sandbox: settings.sandbox,
    })
}
