//! Entry points of the fuzz targets `mcp_request` (input of an MCP client) and `apply_patch` (a
//! file and a patch).
//!
//! Checked invariants: the server ends with its input and writes only JSON-RPC messages; a patch
//! error names a line of the patch; an applied patch changes the number of lines by its insertions
//! and removals. Elsewhere: the targets and their corpora (`fuzz/`).

use std::{io::Cursor, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::{
    environment::{Command, Environment, ExecBackend, NoCatalog, StartError, StartedProcess},
    filesystem::{
        ExecutorFileSystem, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
        OpenFile, OpenFileRequest, PathWatcher, WatchPathRequest,
    },
    http::NoHttpClient,
};
use exec_wire::{
    environment::EnvironmentInfo,
    error::RpcError,
    fs::{
        CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing, FileMetadata,
        FindPaths, FoundPaths, GetMetadata, ReadDirectory, ReadFile, RemovePath, RenamePath,
        SearchResult, SearchText, SetMetadata, WalkResult, WalkTree, WriteFile,
    },
    path_uri::PathUri,
};
use futures_util::future::{BoxFuture, FutureExt, ready};
use serde_json::Value;
use tokio::io::AsyncReadExt;

use super::{
    AgentWorkspace, McpTools, NetworkMode, WorkspaceAccess,
    patch::{HunkLine, Patch, PatchHunk, PatchOperation, apply},
};

/// Serves one client. If the first byte is even, the input follows an initialized session;
/// otherwise it is sent as is. Time is simulated.
///
/// # Panics
/// Panics if an invariant is violated.
pub fn mcp_request(input: &[u8]) {
    let Some((&selector, requests)) = input.split_first() else {
        return;
    };
    let opening = if selector % 2 == 0 { OPENING } else { "" };
    let written = [opening.as_bytes(), requests].concat();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build();
    let Ok(runtime) = runtime else {
        panic!("a current-thread runtime starts");
    };
    let output = runtime.block_on(async {
        let Ok(root) = PathUri::parse("file:///workspace") else {
            panic!("the workspace is a valid path");
        };
        let workspace = AgentWorkspace::new(root, WorkspaceAccess::Open, NetworkMode::Open);
        let tools = McpTools::new(environment(), workspace, "0.0.0");
        let (near, mut far) = tokio::io::duplex(64 * 1024);
        let mut output = Vec::new();
        let serve = tools.serve(Cursor::new(written), near);
        let both = async { tokio::join!(serve, far.read_to_end(&mut output)) };
        let ended = tokio::time::timeout(ENDS_WITHIN, both).await;
        assert!(ended.is_ok(), "the server does not end with its input");
        output
    });
    for line in output.split(|&byte| byte == b'\n') {
        let message = serde_json::from_slice::<Value>(line);
        let is_message = message.is_ok_and(|message| message["jsonrpc"] == "2.0");
        let text = String::from_utf8_lossy(line);
        assert!(line.is_empty() || is_message, "not a message: {text}");
    }
}

fn environment() -> Environment {
    Environment {
        backend: Arc::new(NoCommands),
        files: Arc::new(OneFile),
        http: Arc::new(NoHttpClient),
        catalog: Arc::new(NoCatalog),
        network: Arc::new(exec_env::tunnel::NoNetwork),
    }
}

/// Fails every start.
#[derive(Debug)]
struct NoCommands;

impl ExecBackend for NoCommands {
    fn start(&self, _: Command) -> BoxFuture<'_, Result<StartedProcess, StartError>> {
        ready(Err(StartError::Cancelled)).boxed()
    }

    fn info(&self) -> BoxFuture<'_, Result<EnvironmentInfo, RpcError>> {
        ready(Err(RpcError::internal("nothing is known".to_owned()))).boxed()
    }
}

/// A file system in which every path names the same file, and writes are discarded.
#[derive(Debug)]
struct OneFile;

impl ExecutorFileSystem for OneFile {
    fn read_file(&self, _: ReadFile) -> FileFuture<Bytes> {
        ready(Ok(Bytes::from_static(CONTENT))).boxed()
    }
    fn write_file(&self, _: WriteFile, _: Bytes) -> FileFuture<()> {
        ready(Ok(())).boxed()
    }
    fn create_directory(&self, _: CreateDirectory) -> FileFuture<()> {
        ready(Ok(())).boxed()
    }
    fn metadata(&self, _: GetMetadata) -> FileFuture<FileMetadata> {
        refused()
    }
    fn set_metadata(&self, _: SetMetadata) -> FileFuture<()> {
        refused()
    }
    fn canonicalize(&self, canonicalize: CanonicalizePath) -> FileFuture<PathUri> {
        ready(Ok(canonicalize.path)).boxed()
    }
    fn read_directory(&self, _: ReadDirectory) -> FileFuture<DirectoryListing> {
        refused()
    }
    fn walk(&self, _: WalkTree) -> FileFuture<WalkResult> {
        refused()
    }
    fn remove(&self, _: RemovePath) -> FileFuture<()> {
        ready(Ok(())).boxed()
    }
    fn copy(&self, _: CopyPath) -> FileFuture<()> {
        refused()
    }
    fn rename(&self, _: RenamePath) -> FileFuture<()> {
        refused()
    }
    fn create_symlink(&self, _: CreateSymlink) -> FileFuture<()> {
        refused()
    }
    fn open(&self, _: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        refused()
    }
    fn search(&self, _: SearchText) -> FileFuture<SearchResult> {
        refused()
    }
    fn find(&self, _: FindPaths) -> FileFuture<FoundPaths> {
        refused()
    }
    fn watch(&self, _: WatchPathRequest) -> FileFuture<PathWatcher> {
        refused()
    }
    fn watch_missing(&self, _: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        ready(Ok(None)).boxed()
    }
}

fn refused<T: Send + 'static>() -> FileFuture<T> {
    let error = FileError::Refused("there is one file".to_owned());
    ready(Err(error)).boxed()
}

const CONTENT: &[u8] = b"fn main() {\n    println!(\"hello\");\n}\n";
/// Messages that open a session.
const OPENING: &str = concat!(
    r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18","#,
    r#""capabilities":{},"clientInfo":{"name":"fuzz","version":"0"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
);
/// Longer than every wait that a client may request, in simulated time.
const ENDS_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);

/// Parses a patch and applies every update in it to the file. The input is the text of the file, a
/// NUL, and the patch.
///
/// # Panics
/// Panics if an invariant is violated.
pub fn apply_patch(input: &[u8]) {
    let Ok(input) = std::str::from_utf8(input) else {
        return;
    };
    let (file, patch) = input.split_once('\0').unwrap_or(("", input));
    let operations = match Patch::parse(patch) {
        Ok(patch) => patch.operations,
        Err(error) => {
            let text = error.to_string();
            let line = text
                .strip_prefix("patch line ")
                .and_then(|rest| rest.split(':').next()?.parse().ok());
            let lines = 1..=patch.lines().count().max(1);
            return assert!(line.is_some_and(|line| lines.contains(&line)), "{text}");
        }
    };
    assert!(!operations.is_empty(), "the patch is empty");
    for operation in &operations {
        match operation {
            PatchOperation::Add { path, content } => {
                assert!(!path.trim().is_empty(), "the path is empty");
                assert!(content.is_empty() || content.ends_with('\n'));
            }
            PatchOperation::Delete { path } => {
                assert!(!path.trim().is_empty(), "the path is empty")
            }
            PatchOperation::Update { path, hunks, .. } => {
                assert!(!path.trim().is_empty(), "the path is empty");
                check_update(file, hunks);
            }
        }
    }
    assert_eq!(apply(file, &[]).as_deref(), Ok(file));
}

fn check_update(file: &str, hunks: &[PatchHunk]) {
    let changed = match apply(file, hunks) {
        Ok(changed) => changed,
        Err(error) => return assert!(error.to_string().starts_with("hunk "), "{error}"),
    };
    let lines = || hunks.iter().flat_map(|hunk| &hunk.lines);
    let inserted = lines().filter(|line| matches!(line, HunkLine::Insert(_)));
    let removed = lines().filter(|line| matches!(line, HunkLine::Remove(_)));
    let expected = line_count(file) + inserted.count() - removed.count();
    assert_eq!(line_count(&changed), expected, "{changed:?}");
}

/// Counts lines without the byte order mark.
fn line_count(text: &str) -> usize {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    text.split_inclusive('\n').count()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn replay(target: &str, run: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus");
        let files = fs::read_dir(corpus.join(target)).unwrap();
        let files: Vec<_> = files.map(Result::unwrap).collect();
        assert!(files.len() > 8, "the corpus is missing");
        for file in files {
            println!("{}", file.path().display());
            run(&fs::read(file.path()).unwrap());
        }
    }

    #[test]
    fn mcp_request_corpus_passes() {
        replay("mcp_request", mcp_request);
    }

    #[test]
    fn apply_patch_corpus_passes() {
        replay("apply_patch", apply_patch);
    }
}
