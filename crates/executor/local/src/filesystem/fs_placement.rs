//! Where an operation is done: here, or by a process that its policy encloses.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::filesystem::{FileError, FileFuture, OpenFile};
use exec_fs::BlockFile;
use exec_sandbox::{
    Need, Planned, Sandboxes,
    files::{Files, Read, Request},
    policy::{reads_everything, writes_everything},
};
use exec_wire::{
    fs::ReadFile,
    sandbox::{Sandbox, WindowsSandboxLevel},
};
use futures_util::future::FutureExt;
use tokio::runtime::Handle;

use super::direct_fs::DirectFs;

/// Who sees to it that policies are kept.
#[derive(Clone, Debug, Default)]
pub(super) enum PolicyEnforcement {
    /// Nobody: a policy that restricts anything is refused.
    #[default]
    Unavailable,
    /// The kernel.
    Enforced {
        /// Says what a policy comes to.
        sandboxes: Sandboxes,
        /// Does what is asked under it.
        files: Files,
    },
}

/// Where an operation is done.
pub(super) enum FsPlacement {
    /// Nothing restricts it.
    Direct,
    /// By a process that is enclosed.
    Sandboxed(SandboxedOperation),
}

impl PolicyEnforcement {
    /// Tells where an operation is done. What a policy comes to depends on the files that are there,
    /// so the answer holds for one operation.
    pub(super) async fn resolve(
        &self,
        sandbox: &Sandbox,
        need: Need,
    ) -> Result<FsPlacement, FileError> {
        let refuse = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
        if sandbox.windows_sandbox_level == WindowsSandboxLevel::Mxc {
            return refuse("windowsSandboxLevel `mxc` is not available on this host");
        }
        let Self::Enforced { sandboxes, files } = self else {
            let is_free = match need {
                Need::Read => reads_everything(sandbox),
                Need::Change => writes_everything(sandbox),
            };
            if is_free {
                return Ok(FsPlacement::Direct);
            }
            return refuse("nobody enforces policies here");
        };
        let plan = sandboxes.plan_for_files(sandbox, need).await?;
        Ok(plan.map_or(FsPlacement::Direct, |plan| {
            let files = files.clone();
            FsPlacement::Sandboxed(SandboxedOperation { files, plan })
        }))
    }

    /// Tells where an operation is done whose turn has come: on a thread that may block.
    pub(super) fn resolve_blocking(
        &self,
        sandbox: &Sandbox,
        need: Need,
    ) -> Result<FsPlacement, FileError> {
        Handle::current().block_on(self.resolve(sandbox, need))
    }
}

/// Operations under one plan.
#[derive(Clone, Debug)]
pub(super) struct SandboxedOperation {
    pub(super) files: Files,
    pub(super) plan: Planned,
}

impl SandboxedOperation {
    /// Changes something, when its turn has come: on a thread that may block.
    pub(super) fn change_blocking(self, request: Request, data: Bytes) -> Result<(), FileError> {
        let called = self.files.call(self.plan, request, data);
        Handle::current().block_on(called)?.into_result()
    }

    /// Reads a whole file; a large one from what was opened, when `here` has room for it.
    pub(super) fn read_file(self, direct: DirectFs, read: ReadFile) -> FileFuture<Bytes> {
        async move {
            match self.files.read_file(self.plan, read.clone()).await? {
                Read::Content(content) => Ok(content),
                Read::Opened(file) => direct.read_received(file, read).await,
            }
        }
        .boxed()
    }

    /// Opens a file whose turn has come: on a thread that may block.
    pub(super) fn open_blocking(
        self,
        direct: &DirectFs,
        open: exec_env::filesystem::Open,
    ) -> Result<Arc<dyn OpenFile>, FileError> {
        let path = open.path.clone();
        let file = Handle::current().block_on(self.files.open(self.plan, open))?;
        Ok(direct.open_file(BlockFile::from_file(file, &path)?, &path))
    }
}
