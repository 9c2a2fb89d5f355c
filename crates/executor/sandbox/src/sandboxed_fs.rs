//! File operations under a policy, performed by sandboxed fs workers.
//!
//! An *fs worker* is a new process of this program that enters its sandbox before it accepts the
//! first request. It performs the operations of `exec-fs`, one request at a time, and passes back
//! the descriptors of files it opened. The kernel enforces the policy; this module checks no paths.
//! A worker is reused only for an equal [`SandboxPlan`], and only while the plan's paths name the
//! same files.
//!
//! Each watch has its own worker. Backpressure: while the client does not read the changes, the
//! worker blocks and gathers further ones; its bounded buffer then reports an overflow.
//!
//! Not here: resolving a policy (`policy`), the operations (`exec-fs`), their order (`exec-local`).

mod fs_worker;
#[cfg(test)]
mod tests;
mod worker_pool;
mod worker_request;

pub(crate) use self::worker_pool::WorkerKey;
pub use self::{
    fs_worker::run_if_fs_worker,
    worker_pool::WorkerLimits,
    worker_request::{WorkerReply, WorkerRequest},
};

use std::{fmt, os::fd::OwnedFd, sync::Arc, time::Duration};

use bytes::Bytes;
use exec_env::filesystem::{
    ChangeBatch, FileError, FileFuture, MissingPathsRequest, MissingPathsWatch, OpenFileRequest,
    PathWatcher, WatchDepth, WatchPathRequest,
};
use exec_process::spawner::Spawner;
use exec_spawn::sandbox_setup::SandboxSetup;
use exec_wire::{fs::ReadFile, path_uri::PathUri};
use futures_util::{
    future::FutureExt,
    stream::{self, BoxStream, StreamExt},
};
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::{
    fs_worker::{ExchangeError, FsWorker, worker_lost},
    worker_pool::{WorkerLease, WorkerPool},
    worker_request::{EncodedChangeBatch, FrameStatus, MAX_DATA_BYTES, MAX_TEXT_BYTES},
};
use crate::{CachedPlan, SandboxFactory, plan::SandboxPlan};

/// Prepares the sandbox set-up of a worker, or returns why this host cannot enforce the plan.
pub type SetupFn = Arc<dyn Fn(Arc<SandboxPlan>) -> FileFuture<SandboxSetup> + Send + Sync>;

/// File operations under a policy. Clones share the workers.
#[derive(Clone)]
pub struct SandboxedFs(Arc<FsShared>);

struct FsShared {
    spawner: Spawner,
    prepare_setup: SetupFn,
    pool: Arc<WorkerPool<FsWorker>>,
    max_age: Duration,
    watches: Arc<Semaphore>,
}

impl SandboxedFs {
    /// Creates a pool without workers. `sandboxes` prepares the sandbox set-up of each worker.
    pub fn new(spawner: Spawner, sandboxes: SandboxFactory) -> Self {
        let prepare_setup: SetupFn = Arc::new(move |plan| {
            let sandboxes = sandboxes.clone();
            let refused = |error| FileError::Refused(format!("sandbox: {error}"));
            async move { sandboxes.setup_for_worker(&plan).await.map_err(refused) }.boxed()
        });
        Self::with_setup(spawner, prepare_setup, WorkerLimits::default())
    }

    /// Creates a pool without workers. `prepare_setup` prepares the sandbox set-up of each worker.
    pub fn with_setup(spawner: Spawner, prepare_setup: SetupFn, limits: WorkerLimits) -> Self {
        Self(Arc::new(FsShared {
            spawner,
            prepare_setup,
            pool: WorkerPool::new(limits),
            max_age: limits.max_age,
            watches: Arc::new(Semaphore::new(limits.max_watches)),
        }))
    }

    /// Performs a request and returns its result.
    ///
    /// # Errors
    /// Fails if the operation fails, this host cannot enforce the plan, or the worker is lost.
    pub fn result<T: DeserializeOwned + Send + 'static>(
        &self,
        plan: impl Into<CachedPlan>,
        request: WorkerRequest,
    ) -> FileFuture<T> {
        let (files, plan) = (self.clone(), plan.into());
        async move {
            let reply = files.call(plan, request, Bytes::new()).await?;
            reply.into_result()
        }
        .boxed()
    }

    /// Opens a file, and reads it if it is small.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub async fn read_file(
        &self,
        plan: impl Into<CachedPlan>,
        read: ReadFile,
    ) -> Result<SandboxedRead, FileError> {
        let reply = self
            .call(plan, WorkerRequest::ReadFile(read), Bytes::new())
            .await?;
        Ok(match reply.file {
            Some(file) => SandboxedRead::Opened(file),
            None => SandboxedRead::Content(reply.data),
        })
    }

    /// Opens a file. The descriptor outlives the worker.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub async fn open(
        &self,
        plan: impl Into<CachedPlan>,
        open: OpenFileRequest,
    ) -> Result<OwnedFd, FileError> {
        let request = WorkerRequest::Open {
            path: open.path,
            mode: open.mode,
        };
        self.call(plan, request, Bytes::new()).await?.into_file()
    }

    /// Watches a path, with a dedicated worker.
    ///
    /// # Errors
    /// As [`Self::result`], and if there are too many watches.
    pub fn watch(
        &self,
        plan: impl Into<CachedPlan>,
        watch: WatchPathRequest,
    ) -> FileFuture<PathWatcher> {
        let (files, plan) = (self.clone(), plan.into());
        let request = WorkerRequest::Watch {
            path: watch.path,
            tree: watch.depth == WatchDepth::Tree,
        };
        async move {
            let (worker, permit, reply) = files.start_watch(plan.plan(), request).await?;
            let path: PathUri = reply.into_result()?;
            let changes = watch_changes(worker, permit);
            Ok(PathWatcher { path, changes })
        }
        .boxed()
    }

    /// Watches for missing paths, with a dedicated worker.
    ///
    /// # Errors
    /// As [`Self::watch`].
    pub fn watch_missing(
        &self,
        plan: impl Into<CachedPlan>,
        paths: MissingPathsRequest,
    ) -> FileFuture<Option<MissingPathsWatch>> {
        let (files, plan) = (self.clone(), plan.into());
        let request = WorkerRequest::WatchMissing {
            missing: paths.missing,
            present: paths.present,
        };
        async move {
            let (worker, permit, reply) = files.start_watch(plan.plan(), request).await?;
            let is_watched: bool = reply.into_result()?;
            Ok(is_watched.then(|| watch_appearance(worker, permit)))
        }
        .boxed()
    }

    /// Performs a request; `data` is the content of a write. Dropping the future stops the worker,
    /// even in the middle of a change.
    ///
    /// # Errors
    /// As [`Self::result`].
    pub async fn call(
        &self,
        plan: impl Into<CachedPlan>,
        request: WorkerRequest,
        data: Bytes,
    ) -> Result<WorkerReply, FileError> {
        let plan = plan.into();
        let text = encode(request)?;
        if data.len() > MAX_DATA_BYTES {
            return Err(FileError::Invalid("content is too long".to_owned()));
        }
        loop {
            let (lease, was_reused) = self.acquire(&plan).await?;
            match exchange(lease, &text, &data, self.0.max_age).await {
                Ok(reply) => return reply,
                // The worker died while idle and did not receive the request: retry.
                Err(ExchangeError::Unsent(_)) if was_reused => {}
                Err(error) => return Err(worker_lost(error)),
            }
        }
    }

    /// Acquires a worker with a sandbox that matches the current files of the plan. Also returns
    /// whether the worker was idle before.
    async fn acquire(
        &self,
        cached_plan: &CachedPlan,
    ) -> Result<(WorkerLease<FsWorker>, bool), FileError> {
        let plan = cached_plan.plan();
        let mut key = cached_plan.key();
        for _ in 0..MAX_START_ATTEMPTS {
            let mut lease = self.0.pool.acquire(&key).await?;
            let was_reused = lease.worker().is_some();
            if was_reused && !lease.had_to_wait() {
                return Ok((lease, true));
            }
            if !was_reused {
                lease.set_worker(self.start(plan).await?);
            }
            // The files may have been replaced while this request waited.
            let now = WorkerKey::capture(plan);
            if now == *key {
                return Ok((lease, was_reused));
            }
            key = Arc::new(now);
        }
        let text = "files named by the policy are replaced too often";
        Err(FileError::Host(text.to_owned()))
    }

    async fn start_watch(
        &self,
        plan: &Arc<SandboxPlan>,
        request: WorkerRequest,
    ) -> Result<(FsWorker, OwnedSemaphorePermit, WorkerReply), FileError> {
        let text = encode(request)?;
        let permit = Arc::clone(&self.0.watches)
            .try_acquire_owned()
            .map_err(|_| FileError::Host("too many watches under sandbox policies".to_owned()))?;
        let mut worker = self.start(plan).await?;
        let outcome = worker.exchange(&text, &[], &[]).await;
        let reply = WorkerReply::from_frame(outcome.map_err(worker_lost)?)?;
        Ok((worker, permit, reply))
    }

    async fn start(&self, plan: &Arc<SandboxPlan>) -> Result<FsWorker, FileError> {
        let setup = (self.0.prepare_setup)(Arc::clone(plan)).await?;
        let worker = FsWorker::start(&self.0.spawner, setup).await?;
        tracing::debug!(pid = worker.pid(), "fs worker started");
        Ok(worker)
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.0.pool.count()
    }

    #[cfg(test)]
    fn idle_pids(&self, plan: &Arc<SandboxPlan>) -> Vec<u32> {
        self.0
            .pool
            .idle(&Arc::new(WorkerKey::capture(plan)), FsWorker::pid)
    }
}

impl fmt::Debug for SandboxedFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxedFs")
            .field("pool", &self.0.pool)
            .finish_non_exhaustive()
    }
}

/// Result of reading a file.
#[derive(Debug)]
pub enum SandboxedRead {
    /// Content of a small file.
    Content(Bytes),
    /// Open descriptor of a large file.
    Opened(OwnedFd),
}

async fn exchange(
    mut lease: WorkerLease<FsWorker>,
    text: &[u8],
    data: &[u8],
    max_age: Duration,
) -> Result<Result<WorkerReply, FileError>, ExchangeError> {
    let not_connected = || ExchangeError::Unsent(std::io::ErrorKind::NotConnected.into());
    let worker = lease.worker().ok_or_else(not_connected)?;
    let frame = worker.exchange(text, data, &[]).await?;
    // A worker never returns memory that it has allocated.
    let bytes_moved = text.len() + data.len() + frame.text.len() + frame.data.len();
    if bytes_moved <= MAX_REUSE_BYTES && worker.age() < max_age {
        lease.return_to_pool();
    }
    Ok(WorkerReply::from_frame(frame))
}

fn encode(request: WorkerRequest) -> Result<Vec<u8>, FileError> {
    let text = serde_json::to_vec(&request.without_policy())
        .map_err(|error| FileError::Invalid(format!("cannot encode request as JSON: {error}")))?;
    if text.len() > MAX_TEXT_BYTES {
        return Err(FileError::Invalid("request is too long".to_owned()));
    }
    Ok(text)
}

/// A worker that transferred more than this is not reused.
const MAX_REUSE_BYTES: usize = 1 << 20;
/// How often the files of a plan may be replaced while a worker starts.
const MAX_START_ATTEMPTS: usize = 4;

/// Streams the changes that a worker reports, until it reports the end. If the worker is lost, the
/// stream reports an overflow.
fn watch_changes(
    worker: FsWorker,
    permit: OwnedSemaphorePermit,
) -> BoxStream<'static, ChangeBatch> {
    stream::unfold(Some((worker, permit)), |state| async move {
        let (mut worker, permit) = state?;
        let batch = match worker.next_frame().await {
            Ok(frame) if frame.status == FrameStatus::Ended => return None,
            Ok(frame) => serde_json::from_slice::<EncodedChangeBatch>(&frame.text).ok(),
            Err(_) => None,
        };
        match batch {
            Some(batch) => Some((batch.into(), Some((worker, permit)))),
            None => Some((LOST_CHANGES, None)),
        }
    })
    .boxed()
}

/// Resolves when a worker reports a change, or when the worker is lost.
fn watch_appearance(mut worker: FsWorker, permit: OwnedSemaphorePermit) -> MissingPathsWatch {
    async move {
        drop(worker.next_frame().await);
        drop(permit);
    }
    .boxed()
}

const LOST_CHANGES: ChangeBatch = ChangeBatch {
    changes: Vec::new(),
    overflow: true,
};
