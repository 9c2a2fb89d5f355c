//! What is configured and installed where commands run.

use std::fmt;

use exec_wire::{
    config::{EnvironmentConfig, ReadEnvironmentConfig},
    discovery::{
        DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoot,
        DiscoveredRoots, DiscoveryRoot,
    },
};
use futures_util::future::{FutureExt, ready};

use crate::filesystem::{FileError, FileFuture};

/// Reads configuration, plugins and skills. It is made of files and fails as they do. Callers cannot
/// tell local from remote through it.
pub trait ExecutorCatalog: fmt::Debug + Send + Sync {
    /// Reads selected keys of the configuration.
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig>;

    /// Reads what lies below each root.
    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots>;

    /// Lists what is installed for the account.
    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities>;
}

/// Knows nothing: for an environment that has no catalog.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCatalog;

impl ExecutorCatalog for NoCatalog {
    fn read_config(&self, _: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        let error = FileError::Refused("this environment has no configuration".to_owned());
        ready(Err(error)).boxed()
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        let nothing = |root: DiscoveryRoot| DiscoveredRoot {
            id: root.id,
            path: root.path,
            plugin: None,
            skills: Vec::new(),
            namespace_manifests: Vec::new(),
            warnings: Vec::new(),
            error: Some("this environment discovers no capabilities".to_owned()),
        };
        let roots = discover.roots.into_iter().map(nothing).collect();
        ready(Ok(DiscoveredRoots { roots })).boxed()
    }

    fn discover(&self, _: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        ready(Ok(DiscoveredCapabilities::default())).boxed()
    }
}
