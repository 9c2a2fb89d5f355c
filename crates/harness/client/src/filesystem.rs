//! Files on a remote host. Every operation is one call.

mod change_queue;

pub(crate) use self::change_queue::{ChangeQueue, FileWatches};

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{
    ExecutorFileSystem, FileBlock, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch,
    OpenFile, OpenFileRequest, PathWatcher, WatchDepth, WatchPathRequest,
};
use exec_wire::{
    fs::{
        self, CanonicalizePath, CopyPath, CreateDirectory, CreateSymlink, DirectoryListing,
        FileMetadata, FindPaths, FoundPaths, GetMetadata, ReadBlock, ReadDirectory, ReadFile,
        RemovePath, RenamePath, SearchResult, SearchText, SetMetadata, StartWatch, WalkResult,
        WalkTree, WatchMissing, WriteBlock, WriteFile,
    },
    id::{HandleId, WatchId},
    initialize::ProtocolExtension,
    limits,
    method::Method,
    path_uri::PathUri,
};
use futures_util::{
    StreamExt,
    future::{FutureExt, ready},
};
use tokio::sync::oneshot;

use self::change_queue::ChangeStream;
use crate::{
    client::{ExecServerClient, decode, malformed},
    client_shared::{DeferredRelease, ReleaseGuard},
    driver::{CallResult, ConnectionNumber, OpenedResource, RawResponse, ResponseSink},
    error::ExecServerError,
    handshake::{check_open, needs_capability},
};

/// Works on the files of a server's host. A single write must fit into a message of
/// [`limits::MAX_MESSAGE_BYTES`]; larger files are written in blocks.
#[derive(Clone, Debug)]
pub struct RemoteFileSystem {
    client: ExecServerClient,
}

impl RemoteFileSystem {
    /// Creates a file system over a connection.
    pub fn new(client: ExecServerClient) -> Self {
        Self { client }
    }

    fn call<M, T>(
        &self,
        params: M,
        resource: OpenedResource,
        outcome: impl FnOnce(M::Result, RawResponse) -> Result<T, FileError> + Send + 'static,
    ) -> FileFuture<T>
    where
        M: Method + Send + 'static,
        T: Send + 'static,
    {
        let call = self.client.call_with_sink(params, cancellable(resource));
        async move {
            let response = call.await.map_err(file_error)?;
            let result = decode::<M>(&response).map_err(file_error)?;
            outcome(result, response)
        }
        .boxed()
    }

    /// Calls a method without a result.
    fn call_unit<M: Method + Send + 'static>(&self, params: M) -> FileFuture<()> {
        self.call(params, OpenedResource::None, |_, _| Ok(()))
    }

    /// Calls a method with a plain result.
    fn call_plain<M>(&self, params: M) -> FileFuture<M::Result>
    where
        M: Method + Send + 'static,
        M::Result: Send,
    {
        self.call(params, OpenedResource::None, |result, _| Ok(result))
    }

    /// Opens a file after the capability checks.
    fn open_file(&self, open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        let id = HandleId::new(&self.client.shared().next_id());
        let params = fs::OpenFile {
            handle_id: id.clone(),
            path: open.path,
            mode: open.mode,
            sandbox: open.sandbox,
        };
        let files = self.clone();
        let resource = OpenedResource::File(id.clone());
        self.call(params, resource, move |_, response| {
            Ok(Arc::new(RemoteFile {
                id,
                connection: response.connection,
                release_guard: Arc::new(response.release_guard),
                files,
            }) as Arc<dyn OpenFile>)
        })
    }

    /// Returns whether the server understands details and pages of listings. Others would ignore
    /// these members.
    fn has_file_details(&self) -> bool {
        let extensions = &self.client.session().extensions;
        extensions.contains(&ProtocolExtension::FileDetails)
    }
}

impl ExecutorFileSystem for RemoteFileSystem {
    fn read_file(&self, read: ReadFile) -> FileFuture<Bytes> {
        self.call(read, OpenedResource::None, |content, response| {
            let data = content.data_base64.map(|data| data.0).or(response.data);
            data.ok_or_else(|| file_error(malformed::<ReadFile>(&"missing field `dataBase64`")))
        })
    }

    fn write_file(&self, write: WriteFile, data: Bytes) -> FileFuture<()> {
        if let Err(error) = self.client.server_kind().check_write(&write) {
            return ready(Err(error)).boxed();
        }
        let max_bytes = self.client.max_data_bytes();
        if data.len() > max_bytes {
            let text = format!("file is too large to write at once: limit is {max_bytes} bytes");
            return ready(Err(FileError::Invalid(text))).boxed();
        }
        let write = WriteFile {
            data_base64: None,
            ..write
        };
        let call = self.client.call_with_data(
            write,
            "dataBase64",
            data,
            None,
            cancellable(OpenedResource::None),
        );
        call.map(|reply| reply.and_then(|response| decode::<WriteFile>(&response)))
            .map(|written| written.map(drop).map_err(file_error))
            .boxed()
    }

    fn create_directory(&self, create: CreateDirectory) -> FileFuture<()> {
        self.call_unit(create)
    }

    fn metadata(&self, get: GetMetadata) -> FileFuture<FileMetadata> {
        if get.details && !self.has_file_details() {
            return ready(Err(unsupported_details())).boxed();
        }
        self.call_plain(get)
    }

    fn set_metadata(&self, set: SetMetadata) -> FileFuture<()> {
        self.call_unit(set)
    }

    fn canonicalize(&self, canonicalize: CanonicalizePath) -> FileFuture<PathUri> {
        self.call(canonicalize, OpenedResource::None, |canonical, _| {
            Ok(canonical.path)
        })
    }

    fn read_directory(&self, read: ReadDirectory) -> FileFuture<DirectoryListing> {
        if read.is_paged() && !self.has_file_details() {
            return ready(Err(unsupported_details())).boxed();
        }
        self.call_plain(read)
    }

    fn walk(&self, walk: WalkTree) -> FileFuture<WalkResult> {
        self.call_plain(walk)
    }

    fn remove(&self, remove: RemovePath) -> FileFuture<()> {
        self.call_unit(remove)
    }

    fn copy(&self, copy: CopyPath) -> FileFuture<()> {
        self.call_unit(copy)
    }

    fn rename(&self, rename: RenamePath) -> FileFuture<()> {
        self.call_unit(rename)
    }

    fn create_symlink(&self, create: CreateSymlink) -> FileFuture<()> {
        self.call_unit(create)
    }

    fn open(&self, open: OpenFileRequest) -> FileFuture<Arc<dyn OpenFile>> {
        if let Err(error) = self.client.server_kind().check_open_mode(open.mode) {
            return ready(Err(error)).boxed();
        }
        if !needs_capability(&open) {
            return self.open_file(open);
        }
        match &self.client.session().environment_info {
            Some(info) => match check_open(&open, &info.capabilities) {
                Ok(()) => self.open_file(open),
                Err(error) => ready(Err(error)).boxed(),
            },
            None => {
                let files = self.clone();
                async move {
                    let info = files.client.info().await.map_err(file_error)?;
                    check_open(&open, &info.capabilities)?;
                    files.open_file(open).await
                }
                .boxed()
            }
        }
    }

    fn search(&self, search: SearchText) -> FileFuture<SearchResult> {
        self.call_plain(search)
    }

    fn find(&self, find: FindPaths) -> FileFuture<FoundPaths> {
        self.call_plain(find)
    }

    fn watch(&self, watch: WatchPathRequest) -> FileFuture<PathWatcher> {
        #[expect(clippy::expect_used, reason = "the text is short")]
        let id = WatchId::new(&self.client.shared().next_id())
            .expect("a short text is a valid watch id");
        let change_queue = Arc::new(ChangeQueue::new(id.clone()));
        let params = StartWatch {
            watch_id: id,
            path: watch.path,
            recursive: watch.depth == WatchDepth::Tree,
            sandbox: watch.sandbox,
        };
        let client = self.client.clone();
        let resource = OpenedResource::Watch(Arc::clone(&change_queue));
        self.call(params, resource, move |result, response| {
            let changes = ChangeStream {
                change_queue,
                _release_guard: response.release_guard,
                _client: client,
            };
            Ok(PathWatcher {
                path: result.path,
                changes: changes.boxed(),
            })
        })
    }

    fn watch_missing(&self, missing: MissingPathsRequest) -> FileFuture<Option<MissingPathsWatch>> {
        // Servers that do not report the capability do not support it.
        let session = self.client.session();
        let info = session.environment_info.as_ref();
        if !info.is_some_and(|info| info.capabilities.fs_watch_missing) {
            return ready(Ok(None)).boxed();
        }
        let (end_sender, changed) = oneshot::channel();
        let client = self.client.clone();
        let mut last = self.client.shared().last_missing_watch();
        *last += 1;
        let params = WatchMissing {
            watch_id: *last,
            missing: missing.missing,
            present: missing.present,
            sandbox: missing.sandbox,
        };
        let release_guard =
            ReleaseGuard::new(self.client.shared(), DeferredRelease::MissingWatch(*last));
        self.call(
            params,
            OpenedResource::MissingWatch(*last, end_sender),
            |answer, _| {
                // A waiting watch keeps the connection open. A dropped sender also means a change:
                // the connection is gone, or another watch has replaced this one.
                let watch = async move {
                    let _release_guard = (release_guard, client);
                    changed.await.unwrap_or_default();
                };
                Ok(answer.watching.then(|| watch.boxed()))
            },
        )
    }
}

fn unsupported_details() -> FileError {
    FileError::Refused("details and pages: not supported by this server".to_owned())
}

/// Creates the sink of a cancellable call.
fn cancellable(
    resource: OpenedResource,
) -> impl FnOnce(oneshot::Sender<CallResult>) -> ResponseSink {
    |reply| ResponseSink::Cancellable(reply, resource)
}

pub(crate) fn file_error(error: ExecServerError) -> FileError {
    match error.into_disconnect() {
        Ok(reason) => FileError::Disconnected(reason),
        Err(ExecServerError::Remote(error)) => error.into(),
        Err(error) => FileError::Host(error.to_string()),
    }
}

/// An open file. Closed after it and all of its pending calls are dropped, because a close does not
/// queue behind earlier calls. Ends with its connection.
#[derive(Debug)]
struct RemoteFile {
    id: HandleId,
    connection: ConnectionNumber,
    release_guard: Arc<Option<ReleaseGuard>>,
    files: RemoteFileSystem,
}

impl OpenFile for RemoteFile {
    fn read_block(&self, offset: u64, length: usize) -> FileFuture<FileBlock> {
        let read = ReadBlock {
            handle_id: self.id.clone(),
            offset,
            len: length as u64,
        };
        let resource = OpenedResource::UsesConnection(self.connection);
        let release_guard = Arc::clone(&self.release_guard);
        self.files.call(read, resource, move |block, response| {
            drop(release_guard);
            let data = block.chunk.map(|chunk| chunk.0).or(response.data);
            let missing = || file_error(malformed::<ReadBlock>(&"missing field `chunk`"));
            Ok(FileBlock {
                data: data.ok_or_else(missing)?,
                eof: block.eof,
            })
        })
    }

    fn write_block(&self, offset: u64, data: Bytes) -> FileFuture<()> {
        if data.len() > limits::MAX_BLOCK_BYTES {
            let max_bytes = limits::MAX_BLOCK_BYTES;
            let text = format!("file write block length must be between 1 and {max_bytes}");
            return ready(Err(FileError::Invalid(text))).boxed();
        }
        let write = WriteBlock {
            handle_id: self.id.clone(),
            offset,
            chunk: None,
        };
        let call = self.files.client.call_with_data(
            write,
            "chunk",
            data,
            None,
            cancellable(OpenedResource::UsesConnection(self.connection)),
        );
        let release_guard = Arc::clone(&self.release_guard);
        async move {
            let _release_guard = release_guard;
            let response = call.await.map_err(file_error)?;
            decode::<WriteBlock>(&response).map_err(file_error)?;
            Ok(())
        }
        .boxed()
    }
}
