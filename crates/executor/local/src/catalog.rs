//! What is configured and installed on this machine: configuration layers, plugins, skills.
//!
//! Everything is read through a file system, so that what a policy forbids to `fs/*` is forbidden here
//! too, and nothing blocks the caller's thread. Each file, each root and each answer has a limit.
//! Not here: where the homes are (the product crate says so), what a client does with the answers.

mod capability_root;
mod catalog_reader;
mod config;
mod installed;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, sync::Arc};

use exec_env::{
    catalog::ExecutorCatalog,
    filesystem::{ExecutorFileSystem, FileError, FileFuture},
};
use exec_wire::{
    config::{EnvironmentConfig, ReadEnvironmentConfig},
    discovery::{DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoots},
    limits,
};
use futures_util::future::{FutureExt, ready};
use tokio::task::{JoinError, spawn_blocking};

/// The configuration, the plugins and the skills of this account. Clones share it.
#[derive(Clone, Debug)]
pub struct LocalCatalog {
    config: Arc<CatalogConfig>,
}

/// Where a catalog looks.
pub struct CatalogConfig {
    /// What everything is read through. It enforces the policies of roots.
    pub files: Arc<dyn ExecutorFileSystem>,
    /// Where the account's configuration, skills and plugins lie. It need not exist.
    pub codex_home: PathBuf,
    /// The account's home.
    pub user_home: Option<PathBuf>,
    /// Where the machine's configuration, requirements and skills lie. It need not exist.
    pub system: PathBuf,
    /// The host's name.
    pub hostname: Option<String>,
}

impl fmt::Debug for CatalogConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogConfig")
            .field("codex_home", &self.codex_home)
            .field("user_home", &self.user_home)
            .field("system", &self.system)
            .field("hostname", &self.hostname)
            .finish_non_exhaustive()
    }
}

impl LocalCatalog {
    /// Makes a catalog. Reads nothing yet.
    pub fn new(config: CatalogConfig) -> Self {
        Self {
            config: Arc::new(config),
        }
    }
}

impl ExecutorCatalog for LocalCatalog {
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        let catalog = Arc::clone(&self.config);
        async move { config::read(&catalog, read).await }.boxed()
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        if discover.roots.len() > limits::MAX_DISCOVERY_ROOTS {
            let most = limits::MAX_DISCOVERY_ROOTS;
            let text = format!("at most {most} capability roots can be discovered at once");
            return ready(Err(FileError::Invalid(text))).boxed();
        }
        let files = Arc::clone(&self.config.files);
        async move {
            let roots = capability_root::discover(&files, discover.roots).await;
            Ok(DiscoveredRoots { roots })
        }
        .boxed()
    }

    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        let catalog = Arc::clone(&self.config);
        async move { Ok(installed::discover(&catalog, discover.sandbox).await) }.boxed()
    }
}

/// Runs work on a thread that may block. Dropping the future does not end the work.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OffloadError> {
    spawn_blocking(work).await.map_err(OffloadError)
}

/// Host: the work was not done, because the runtime ends or the work panicked.
#[derive(Debug, thiserror::Error)]
#[error("what was read was lost: {0}")]
struct OffloadError(JoinError);
