//! What a harness works in: where commands run and files are.

use std::sync::Arc;

use crate::{
    backend::ExecBackend, catalog::ExecutorCatalog, filesystem::ExecutorFileSystem,
    http::HttpClient,
};

/// An environment, local or remote. Clones share it.
#[derive(Clone, Debug)]
pub struct Environment {
    /// Starts processes.
    pub backend: Arc<dyn ExecBackend>,
    /// Works on files.
    pub files: Arc<dyn ExecutorFileSystem>,
    /// Makes HTTP requests.
    pub http: Arc<dyn HttpClient>,
    /// Knows what is configured and installed.
    pub catalog: Arc<dyn ExecutorCatalog>,
}
