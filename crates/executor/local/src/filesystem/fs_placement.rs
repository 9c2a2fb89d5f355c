//! Decides whether an operation runs directly or in a sandboxed fs worker.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{FileError, FileFuture, OpenFile};
use exec_fs::BlockFile;
use exec_sandbox::{
    CachedPlan, FileIntent, SandboxFactory,
    policy::{reads_everything, writes_everything},
    sandboxed_fs::{SandboxedFs, SandboxedRead, WorkerRequest},
};
use exec_wire::{
    fs::ReadFile,
    sandbox::{SandboxPolicy, WindowsSandboxLevel},
};
use futures_util::future::FutureExt;
use tokio::runtime::Handle;

use super::direct_fs::DirectFs;

/// How policies are enforced.
#[derive(Clone, Debug, Default)]
pub(super) enum PolicyEnforcement {
    /// Not at all: restrictive policies are rejected.
    #[default]
    Unavailable,
    /// By fs workers that the kernel confines.
    Enforced {
        /// Plans sandboxes.
        sandboxes: SandboxFactory,
        /// Runs operations in fs workers.
        files: SandboxedFs,
    },
}

/// Where an operation runs.
pub(super) enum FsPlacement {
    /// In this process: no policy restricts it.
    Direct,
    /// In a sandboxed fs worker.
    Sandboxed(SandboxedOperation),
}

impl PolicyEnforcement {
    /// Resolves where an operation runs. The plan depends on existing files, so the result is valid
    /// for one operation.
    pub(super) async fn resolve(
        &self,
        sandbox: &SandboxPolicy,
        need: FileIntent,
    ) -> Result<FsPlacement, FileError> {
        let reject = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
        if sandbox.windows_sandbox_level == WindowsSandboxLevel::Mxc {
            return reject("windowsSandboxLevel `mxc` is not available on this host");
        }
        let Self::Enforced { sandboxes, files } = self else {
            let is_free = match need {
                FileIntent::Read => reads_everything(sandbox),
                FileIntent::Change => writes_everything(sandbox),
            };
            if is_free {
                return Ok(FsPlacement::Direct);
            }
            return reject("policies cannot be enforced by this file system");
        };
        let plan = sandboxes.plan_for_files(sandbox, need).await?;
        Ok(plan.map_or(FsPlacement::Direct, |plan| {
            let files = files.clone();
            FsPlacement::Sandboxed(SandboxedOperation { files, plan })
        }))
    }

    /// Resolves where an operation runs. Blocks.
    pub(super) fn resolve_blocking(
        &self,
        sandbox: &SandboxPolicy,
        need: FileIntent,
    ) -> Result<FsPlacement, FileError> {
        Handle::current().block_on(self.resolve(sandbox, need))
    }
}

/// An operation in an fs worker under one plan.
#[derive(Clone, Debug)]
pub(super) struct SandboxedOperation {
    pub(super) files: SandboxedFs,
    pub(super) plan: CachedPlan,
}

impl SandboxedOperation {
    /// Runs a change. Blocks.
    pub(super) fn change_blocking(
        self,
        request: WorkerRequest,
        data: Bytes,
    ) -> Result<(), FileError> {
        let called = self.files.call(self.plan, request, data);
        Handle::current().block_on(called)?.into_result()
    }

    /// Reads a whole file. Reads a large file from the descriptor that the worker opened, when
    /// `direct` grants the memory.
    pub(super) fn read_file(self, direct: DirectFs, read: ReadFile) -> FileFuture<Bytes> {
        async move {
            match self.files.read_file(self.plan, read.clone()).await? {
                SandboxedRead::Content(content) => Ok(content),
                SandboxedRead::Opened(file) => direct.read_received(file, read).await,
            }
        }
        .boxed()
    }

    /// Opens a file. Blocks.
    pub(super) fn open_blocking(
        self,
        direct: &DirectFs,
        open: exec_env::filesystem::OpenFileRequest,
    ) -> Result<Arc<dyn OpenFile>, FileError> {
        let path = open.path.clone();
        let file = Handle::current().block_on(self.files.open(self.plan, open))?;
        Ok(direct.open_file(BlockFile::from_file(file, &path)?, &path))
    }
}
