//! Handlers of `fs/*` and of the catalog: each request is one call of the environment's file system
//! or catalog.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::{
    environment::Environment,
    filesystem::{
        ChangeBatch, ExecutorFileSystem, FileBlock, FileError, FileFuture, MissingPathsRequest,
        OpenFileRequest, WatchDepth, WatchPathRequest,
    },
};
use exec_wire::{
    error::RpcError,
    fs::{
        BlockContent, CloseFile, FileContent, MissingPathNotification, OpenFile, OpenedFile,
        ReadBlock, StartWatch, StopWatch, WatchMissing, WatchMissingResult, WatchNotification,
        WatchResult, WriteBlock, WriteFile,
    },
    limits,
    message::RequestId,
    method::notification,
    outgoing_message::OutgoingMessage,
    process::EmptyResult,
};
use futures_util::{future::FutureExt, stream::StreamExt};
use serde::Serialize;

use super::{Dispatch, HandlerContext, RequestResult, respond_now};
use crate::connection_files::{OpenHandle, check_handle};

impl HandlerContext<'_> {
    pub(super) fn file_system(&self) -> &Arc<dyn ExecutorFileSystem> {
        &self.session.environment.files
    }

    pub(super) fn read_file(&self, id: RequestId, read: exec_wire::fs::ReadFile) -> Dispatch {
        let metrics = Arc::clone(&self.shared.metrics);
        run_file_operation(
            self.file_system().read_file(read),
            move |content| match content {
                Ok(data) => {
                    metrics.file_read_bytes.add_bytes(data.len());
                    RequestResult::with_data(&id, &FileContent::default(), "dataBase64", data)
                }
                Err(error) => RequestResult::error(&id, &error.into()),
            },
        )
    }

    pub(super) fn write_file(
        &self,
        id: RequestId,
        mut write: WriteFile,
    ) -> Result<Dispatch, RpcError> {
        // Decoding has checked that there is data.
        let data = write.data_base64.take();
        let data = data.map_or(Ok(Bytes::new()), |data| data.0);
        let data =
            data.map_err(|error| RpcError::invalid_request(format!("dataBase64: {error}")))?;
        let bytes = data.len();
        Ok(self.written(id, bytes, self.file_system().write_file(write, data)))
    }

    /// Responds with a potentially large list. A semaphore limits the lists in memory: the next one
    /// is built after the previous one was queued for sending.
    pub(super) fn list_request<T: Serialize + Send + 'static>(
        &self,
        id: RequestId,
        operation: impl FnOnce(&Environment) -> FileFuture<T> + Send + 'static,
    ) -> Dispatch {
        let (files, send_queue) = (Arc::clone(self.files), Arc::clone(self.send_queue));
        let environment = self.session.environment.clone();
        let run = async move {
            // The semaphore is never closed.
            let _permit = files.list_permits.acquire().await;
            let list = operation(&environment).await;
            let result = RequestResult::new(&id, &list.map_err(RpcError::from));
            result.send(&send_queue).await
        };
        Dispatch::Running(run.boxed())
    }

    pub(super) fn open_file(&self, id: RequestId, open: OpenFile) -> Result<Dispatch, RpcError> {
        let OpenFile {
            handle_id,
            path,
            mode,
            sandbox,
        } = open;
        // Reserve the id first: opening may truncate the file.
        let reservation = self.files.admit_handle(&handle_id)?;
        let open = OpenFileRequest {
            path,
            mode,
            sandbox,
        };
        Ok(file_result(id, self.file_system().open(open), |file| {
            reservation.finish(file);
            OpenedFile { handle_id }
        }))
    }

    pub(super) fn read_block(
        &self,
        id: RequestId,
        read: ReadBlock,
        file: PinnedFile,
    ) -> Result<Dispatch, RpcError> {
        let ReadBlock {
            handle_id,
            offset,
            len,
        } = read;
        let length = usize::try_from(len).unwrap_or(usize::MAX);
        check_handle(&handle_id)?;
        check_block("read", offset, length)?;
        let handle = self.files.find(&handle_id, file)?;
        let (files, metrics) = (Arc::clone(self.files), Arc::clone(&self.shared.metrics));
        let reading = handle.file.read_block(offset, length);
        Ok(run_file_operation(reading, move |block| match block {
            Ok(FileBlock { data, eof }) => {
                let content = BlockContent { chunk: None, eof };
                metrics.file_read_bytes.add_bytes(data.len());
                RequestResult::with_data(&id, &content, "chunk", data)
            }
            Err(error) => {
                // Close the handle after a read error.
                files.fail(&handle_id, &handle);
                RequestResult::error(&id, &error.into())
            }
        }))
    }

    pub(super) fn write_block(
        &self,
        id: RequestId,
        write: WriteBlock,
        file: PinnedFile,
    ) -> Result<Dispatch, RpcError> {
        // Decoding has checked that there is data.
        let data = write.chunk.unwrap_or_default().0;
        let (handle_id, offset, bytes) = (&write.handle_id, write.offset, data.len());
        check_handle(handle_id)?;
        check_block("write", offset, bytes)?;
        let handle = self.files.find(handle_id, file)?;
        Ok(self.written(id, bytes, handle.file.write_block(offset, data)))
    }

    /// Responds to a write and counts its bytes.
    fn written(&self, id: RequestId, bytes: usize, operation: FileFuture<()>) -> Dispatch {
        let metrics = Arc::clone(&self.shared.metrics);
        file_result(id, operation, move |()| {
            metrics.file_written_bytes.add_bytes(bytes);
            EmptyResult {}
        })
    }

    pub(super) fn close_file(
        &self,
        id: &RequestId,
        close: &CloseFile,
    ) -> Result<Dispatch, RpcError> {
        check_handle(&close.handle_id)?;
        self.files.close(&close.handle_id);
        Ok(respond_now(id, Ok(EmptyResult {})))
    }
}

/// A file handle resolved when the request arrived.
pub(crate) type PinnedFile = Option<Arc<OpenHandle>>;

/// Checks the length and the range of a block.
fn check_block(verb: &str, offset: u64, length: usize) -> Result<(), RpcError> {
    let max = limits::MAX_BLOCK_BYTES;
    if !(1..=max).contains(&length) {
        let text = format!("file {verb} block length must be between 1 and {max}");
        return Err(RpcError::invalid_request(text));
    }
    let end = offset.checked_add(length as u64).map(i64::try_from);
    if !matches!(end, Some(Ok(_))) {
        let text = format!("file {verb} block must end below 2^63");
        return Err(RpcError::invalid_request(text));
    }
    Ok(())
}

/// Responds with the result of a file operation.
pub(super) fn file_result<T, R>(
    id: RequestId,
    operation: FileFuture<T>,
    result: impl FnOnce(T) -> R + Send + 'static,
) -> Dispatch
where
    T: Send + 'static,
    R: Serialize,
{
    run_file_operation(operation, move |outcome| {
        RequestResult::new(&id, &outcome.map(result).map_err(RpcError::from))
    })
}

/// Responds with an empty result after a file operation.
pub(super) fn file_done(id: RequestId, operation: FileFuture<()>) -> Dispatch {
    file_result(id, operation, |()| EmptyResult {})
}

/// Responds at once if the operation completed without waiting, otherwise runs it.
fn run_file_operation<T: Send + 'static>(
    mut operation: FileFuture<T>,
    finish: impl FnOnce(Result<T, FileError>) -> RequestResult + Send + 'static,
) -> Dispatch {
    match (&mut operation).now_or_never() {
        Some(outcome) => Dispatch::Ready(finish(outcome)),
        None => Dispatch::Running(async move { finish(operation.await) }.boxed()),
    }
}

impl HandlerContext<'_> {
    pub(super) fn watch(&self, id: RequestId, watch: StartWatch) -> Result<Dispatch, RpcError> {
        let watch_id = watch.watch_id;
        let reservation = self.files.admit_watch(&watch_id)?;
        let depth = if watch.recursive {
            WatchDepth::Tree
        } else {
            WatchDepth::Entries
        };
        let watching = self.file_system().watch(WatchPathRequest {
            path: watch.path,
            depth,
            sandbox: watch.sandbox,
        });
        let send_queue = Arc::clone(self.send_queue);
        let run = async move {
            let mut watcher = match watching.await {
                Ok(watcher) => watcher,
                Err(error) => return RequestResult::error(&id, &error.into()),
            };
            let path = watcher.path.clone();
            let result = RequestResult::new(&id, &Ok(WatchResult { path }));
            let result = result.send(&send_queue).await;
            let notify = async move {
                let mut ended = false;
                while !ended {
                    let changes = watcher.changes.next().await;
                    ended = changes.is_none();
                    let ChangeBatch { changes, overflow } = changes.unwrap_or_default();
                    let changed = WatchNotification {
                        watch_id: watch_id.clone(),
                        changes,
                        overflow,
                        ended,
                    };
                    let message = OutgoingMessage::notification(notification::FS_CHANGED, &changed);
                    send_queue.send(message).await;
                }
            };
            reservation.finish(tokio::spawn(notify).abort_handle());
            result
        };
        Ok(Dispatch::Running(run.boxed()))
    }

    pub(super) fn unwatch(&self, id: &RequestId, unwatch: &StopWatch) -> Dispatch {
        self.files.unwatch(&unwatch.watch_id);
        respond_now(id, Ok(EmptyResult {}))
    }

    pub(super) fn watch_missing(&self, id: RequestId, watch: WatchMissing) -> Dispatch {
        let watch_id = watch.watch_id;
        if !self.files.admit_missing(watch_id) {
            return respond_now(&id, Ok(WatchMissingResult { watching: false }));
        }
        let watching = self.file_system().watch_missing(MissingPathsRequest {
            missing: watch.missing,
            present: watch.present,
            sandbox: watch.sandbox,
        });
        let (send_queue, files) = (Arc::clone(self.send_queue), Arc::clone(self.files));
        let run = async move {
            let fired = match watching.await {
                Ok(fired) => fired,
                Err(error) => return RequestResult::error(&id, &error.into()),
            };
            let watching = fired.is_some();
            let result = RequestResult::new(&id, &Ok(WatchMissingResult { watching }));
            let result = result.send(&send_queue).await;
            if let Some(fired) = fired {
                let notify = async move {
                    fired.await;
                    let appeared = MissingPathNotification { watch_id };
                    let method = notification::FS_MISSING_CHANGED;
                    send_queue
                        .send(OutgoingMessage::notification(method, &appeared))
                        .await;
                };
                files.set_missing_watch(tokio::spawn(notify).abort_handle());
            }
            result
        };
        Dispatch::Running(run.boxed())
    }
}
