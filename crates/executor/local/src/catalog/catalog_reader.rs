//! Reads text files under a sandbox policy and within size limits.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use exec_env::filesystem::{ExecutorFileSystem, FileError, OpenFileRequest};
use exec_wire::{
    discovery::CapabilityFile,
    fs::{CanonicalizePath, FileMetadata, GetMetadata, OpenMode},
    limits,
    path_uri::PathUri,
    sandbox::SandboxPolicy,
};

/// Reads files under one policy.
#[derive(Clone, Debug)]
pub(super) struct CatalogReader {
    pub(super) files: Arc<dyn ExecutorFileSystem>,
    pub(super) sandbox: Option<Box<SandboxPolicy>>,
}

/// Result of reading a file.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum FileRead {
    /// Content of the file.
    Text(String),
    /// The file does not exist or is not a regular file.
    Missing,
    /// The file exists but cannot be read, with the reason.
    Unreadable(String),
}

impl CatalogReader {
    pub(super) fn new(
        files: &Arc<dyn ExecutorFileSystem>,
        sandbox: Option<Box<SandboxPolicy>>,
    ) -> Self {
        let files = Arc::clone(files);
        Self { files, sandbox }
    }

    /// Reads a regular file of at most `max` bytes. Follows symlinks.
    pub(super) async fn text(&self, path: &PathUri, max: u64) -> FileRead {
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

    pub(super) async fn metadata(&self, path: &PathUri) -> Result<FileMetadata, FileError> {
        let get = GetMetadata {
            path: path.clone(),
            follow_symlinks: None,
            sandbox: self.sandbox.clone(),
        };
        self.files.metadata(get).await
    }

    pub(super) async fn canonicalize(&self, path: &PathUri) -> Option<PathUri> {
        let canonicalize = CanonicalizePath {
            path: path.clone(),
            sandbox: self.sandbox.clone(),
        };
        self.files.canonicalize(canonicalize).await.ok()
    }
}

/// Collects the files of one root within its limits, and warnings about omitted files.
#[derive(Debug)]
pub(super) struct RootBundle<'a> {
    reader: &'a CatalogReader,
    budget: DiscoveryBudget,
    /// Remaining bytes of this root.
    remaining: usize,
    /// Warnings about omitted files.
    pub(super) warnings: Vec<String>,
}

/// Byte budget of all roots of one response. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct DiscoveryBudget(Arc<AtomicUsize>);

impl Default for DiscoveryBudget {
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(limits::MAX_DISCOVERY_BYTES)))
    }
}

impl DiscoveryBudget {
    /// Takes bytes from the budget, if enough remain.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let subtract = |remaining: usize| remaining.checked_sub(bytes);
        let update = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract);
        update.is_ok()
    }

    /// Returns unused bytes to the budget.
    pub(super) fn refund(&self, bytes: usize) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl<'a> RootBundle<'a> {
    pub(super) fn new(reader: &'a CatalogReader, budget: DiscoveryBudget) -> Self {
        Self {
            reader,
            budget,
            remaining: limits::MAX_DISCOVERY_ROOT_BYTES,
            warnings: Vec::new(),
        }
    }

    /// Adds a file if it exists, is text and fits. Records a warning if it is omitted.
    pub(super) async fn take(&mut self, path: PathUri) -> Option<CapabilityFile> {
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
pub(super) fn json_len(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'"' | b'\\' | b'\n' | b'\r' | b'\t' | 0x08 | 0x0c => 2,
        0..0x20 => 6,
        _ => 1,
    });
    bytes.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_length_matches_serde_json() {
        let controls: String = (0..=0x80).map(char::from).collect();
        for text in ["", "plain", "caf\u{e9} \u{1f600}", &controls] {
            let json = serde_json::to_string(text).unwrap();
            assert_eq!(json_len(text), json.len() - 2, "{text:?}");
        }
    }
}
