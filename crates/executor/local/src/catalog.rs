//! Configuration layers, plugins and skills of this machine.
//!
//! All reads go through a file system, so that sandbox policies apply as in `fs/*` and nothing
//! blocks the caller's thread. Each file, root and response has a size limit. Elsewhere: the
//! location of the homes, which the product crate decides.

mod capability_root;
mod catalog_reader;
mod config;
mod installed;
#[cfg(test)]
mod tests;

use std::{fmt, path::PathBuf, sync::Arc};

use exec_env::{
    environment::ExecutorCatalog,
    filesystem::{ExecutorFileSystem, FileError, FileFuture},
};
use exec_wire::{
    discovery::{DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoots},
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    limits,
};
use futures_util::future::{FutureExt, ready};
use tokio::task::{JoinError, spawn_blocking};

/// Configuration, plugins and skills of this account. Clones share state.
#[derive(Clone, Debug)]
pub struct LocalCatalog {
    config: Arc<CatalogConfig>,
}

/// Locations that a catalog reads.
pub struct CatalogConfig {
    /// File system for all reads. It enforces the policies of roots.
    pub files: Arc<dyn ExecutorFileSystem>,
    /// Directory of the account's configuration, skills and plugins. It may be missing.
    pub codex_home: PathBuf,
    /// Home directory of the account.
    pub user_home: Option<PathBuf>,
    /// Directory of the machine's configuration, requirements and skills. It may be missing.
    pub system: PathBuf,
    /// Host name.
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
    /// Creates a catalog. Reads nothing yet.
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
            let max = limits::MAX_DISCOVERY_ROOTS;
            let text = format!("at most {max} capability roots can be discovered at once");
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

/// Runs work on the blocking pool: parsing untrusted files may take long. Dropping the future does
/// not stop the work.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OffloadError> {
    spawn_blocking(work).await.map_err(OffloadError)
}

/// Host: the work panicked, or the runtime is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("parsing did not complete: {0}")]
struct OffloadError(JoinError);
