//! Configuration, plugins and skills of a remote host.

use exec_env::{
    environment::ExecutorCatalog,
    filesystem::{FileError, FileFuture},
};
use exec_wire::{
    discovery::{DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities, DiscoveredRoots},
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    method::Method,
};
use futures_util::future::FutureExt;

use crate::{client::ExecServerClient, filesystem::file_error};

/// Reads the configuration, the plugins and the skills of a remote host.
#[derive(Clone, Debug)]
pub struct RemoteCatalog {
    client: ExecServerClient,
}

impl RemoteCatalog {
    /// Creates a catalog over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    fn call<M: Method + Send + 'static>(&self, params: M) -> FileFuture<M::Result>
    where
        M::Result: Send,
    {
        self.client
            .call(params)
            .map(|result| result.map_err::<FileError, _>(file_error))
            .boxed()
    }
}

impl ExecutorCatalog for RemoteCatalog {
    fn read_config(&self, read: ReadEnvironmentConfig) -> FileFuture<EnvironmentConfig> {
        self.call(read)
    }

    fn discover_roots(&self, discover: DiscoverRoots) -> FileFuture<DiscoveredRoots> {
        self.call(discover)
    }

    fn discover(&self, discover: DiscoverCapabilities) -> FileFuture<DiscoveredCapabilities> {
        self.call(discover)
    }
}
