//! Configuration layers, plugins and skills of this machine.
//!
//! All reads go through a file system, so that sandbox policies apply as in `fs/*` and nothing
//! blocks the caller's thread. Each file, root and response has a size limit. Elsewhere: the
//! location of the homes, which the product crate decides.

mod capability_root;
mod config;
mod installed;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use exec_env::{
    environment::ExecutorCatalog,
    filesystem::{ExecutorFileSystem, FileError, FileFuture, OpenFileRequest},
};
use exec_wire::{
    discovery::{
        CapabilityFile, DiscoverCapabilities, DiscoverRoots, DiscoveredCapabilities,
        DiscoveredRoots,
    },
    environment::{EnvironmentConfig, ReadEnvironmentConfig},
    fs::{CanonicalizePath, FileMetadata, GetMetadata, OpenMode},
    limits,
    path_uri::PathUri,
    sandbox::SandboxPolicy,
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

/// Reads files under one policy.
#[derive(Clone, Debug)]
struct CatalogReader {
    files: Arc<dyn ExecutorFileSystem>,
    sandbox: Option<Box<SandboxPolicy>>,
}

/// Result of reading a file.
#[derive(Debug, Eq, PartialEq)]
enum FileRead {
    /// Content of the file.
    Text(String),
    /// The file does not exist or is not a regular file.
    Missing,
    /// The file exists but cannot be read, with the reason.
    Unreadable(String),
}

impl CatalogReader {
    fn new(files: &Arc<dyn ExecutorFileSystem>, sandbox: Option<Box<SandboxPolicy>>) -> Self {
        let files = Arc::clone(files);
        Self { files, sandbox }
    }

    /// Reads a regular file of at most `max` bytes. Follows symlinks.
    async fn text(&self, path: &PathUri, max: u64) -> FileRead {
        let bytes = match self.bytes(path, max).await {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                return FileRead::Unreadable(format!("`{path}` is larger than {max} bytes"));
            }
            Err(FileError::NotFound(_)) => return FileRead::Missing,
            // A directory or pipe is not an error: it is treated as missing.
            Err(error) => {
                return match self.metadata(path).await {
                    Ok(found) if !found.is_file => FileRead::Missing,
                    Err(FileError::NotFound(_)) => FileRead::Missing,
                    Ok(_) | Err(_) => {
                        FileRead::Unreadable(format!("cannot read `{path}`: {error}"))
                    }
                };
            }
        };
        String::from_utf8(bytes).map_or_else(
            |error| FileRead::Unreadable(format!("`{path}` is not UTF-8: {}", error.utf8_error())),
            FileRead::Text,
        )
    }

    /// Reads a file. Returns `None` if it has more than `max` bytes.
    async fn bytes(&self, path: &PathUri, max: u64) -> Result<Option<Vec<u8>>, FileError> {
        let open = OpenFileRequest {
            path: path.clone(),
            mode: OpenMode::Read,
            sandbox: self.sandbox.clone(),
        };
        let file = self.files.open(open).await?;
        let mut bytes = Vec::new();
        loop {
            let read = bytes.len() as u64;
            if read > max {
                return Ok(None);
            }
            let block = file.read_block(read, limits::MAX_BLOCK_BYTES).await?;
            bytes.extend_from_slice(&block.data);
            if block.eof {
                return Ok((bytes.len() as u64 <= max).then_some(bytes));
            }
        }
    }

    async fn metadata(&self, path: &PathUri) -> Result<FileMetadata, FileError> {
        let get = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            details: false,
            sandbox: self.sandbox.clone(),
        };
        self.files.metadata(get).await
    }

    async fn canonicalize(&self, path: &PathUri) -> Option<PathUri> {
        let canonicalize = CanonicalizePath {
            path: path.clone(),
            sandbox: self.sandbox.clone(),
        };
        self.files.canonicalize(canonicalize).await.ok()
    }
}

/// Collects the files of one root within its limits, and warnings about omitted files.
#[derive(Debug)]
struct RootBundle<'a> {
    reader: &'a CatalogReader,
    budget: DiscoveryBudget,
    /// Remaining bytes of this root.
    remaining: usize,
    /// Warnings about omitted files.
    warnings: Vec<String>,
}

/// Byte budget of all roots of one response. Clones share it.
#[derive(Clone, Debug)]
struct DiscoveryBudget(Arc<AtomicUsize>);

impl Default for DiscoveryBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(limits::MAX_DISCOVERY_BYTES)))
    }
}

impl DiscoveryBudget {
    /// Takes bytes from the budget, if enough remain.
    fn take(&self, bytes: usize) -> bool {
        let subtract = |remaining: usize| remaining.checked_sub(bytes);
        let update = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        update.is_ok()
    }

    /// Returns unused bytes to the budget.
    fn refund(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl<'a> RootBundle<'a> {
    fn new(reader: &'a CatalogReader, budget: DiscoveryBudget) -> Self {
        Self {
            reader,
            budget,
            remaining: limits::MAX_DISCOVERY_ROOT_BYTES,
            warnings: Vec::new(),
        }
    }

    /// Adds a file if it exists, is text and fits. Records a warning if it is omitted.
    async fn take(&mut self, path: PathUri) -> Option<CapabilityFile> {
        let max = limits::MAX_DISCOVERY_FILE_BYTES;
        let contents = match self.reader.text(&path, max).await {
            FileRead::Text(contents) => contents,
            FileRead::Missing => return None,
            FileRead::Unreadable(reason) => {
                self.warnings.push(reason);
                return None;
            }
        };
        let Some(remaining) = self.remaining.checked_sub(contents.len()) else {
            let max = limits::MAX_DISCOVERY_ROOT_BYTES;
            let warning = format!("`{path}` is omitted: the root's files exceed {max} bytes");
            self.warnings.push(warning);
            return None;
        };
        if !self.budget.take(json_len(&contents)) {
            let max = limits::MAX_DISCOVERY_BYTES;
            let warning = format!("`{path}` is omitted: the files of all roots exceed {max} bytes");
            self.warnings.push(warning);
            return None;
        }
        self.remaining = remaining;
        Some(CapabilityFile { path, contents })
    }
}

/// Returns the length of a text in a JSON response, including escapes.
fn json_len(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum()
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
