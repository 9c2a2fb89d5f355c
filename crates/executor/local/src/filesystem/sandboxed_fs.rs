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

use super::direct_fs::Here;

/// Who sees to it that policies are kept.
#[derive(Clone, Debug, Default)]
pub(super) enum Policies {
    /// Nobody: a policy that restricts anything is refused.
    #[default]
    Refused,
    /// The kernel.
    Kept {
        /// Says what a policy comes to.
        sandboxes: Sandboxes,
        /// Does what is asked under it.
        files: Files,
    },
}

/// Where an operation is done.
pub(super) enum Place {
    /// Nothing restricts it.
    Here,
    /// By a process that is enclosed.
    Enclosed(Enclosed),
}

impl Policies {
    /// Tells where an operation is done. What a policy comes to depends on the files that are there,
    /// so the answer holds for one operation.
    pub(super) async fn place(&self, sandbox: &Sandbox, need: Need) -> Result<Place, FileError> {
        let refuse = |text: &str| Err(FileError::Refused(format!("sandbox: {text}")));
        if sandbox.windows_sandbox_level == WindowsSandboxLevel::Mxc {
            return refuse("windowsSandboxLevel `mxc` is not available on this host");
        }
        let Self::Kept { sandboxes, files } = self else {
            let is_free = match need {
                Need::Read => reads_everything(sandbox),
                Need::Change => writes_everything(sandbox),
            };
            if is_free {
                return Ok(Place::Here);
            }
            return refuse("nobody enforces policies here");
        };
        let plan = sandboxes.plan_for_files(sandbox, need).await?;
        Ok(plan.map_or(Place::Here, |plan| {
            let files = files.clone();
            Place::Enclosed(Enclosed { files, plan })
        }))
    }

    /// Tells where an operation is done whose turn has come: on a thread that may block.
    pub(super) fn place_in_line(&self, sandbox: &Sandbox, need: Need) -> Result<Place, FileError> {
        Handle::current().block_on(self.place(sandbox, need))
    }
}

/// Operations under one plan.
#[derive(Clone, Debug)]
pub(super) struct Enclosed {
    pub(super) files: Files,
    pub(super) plan: Planned,
}

impl Enclosed {
    /// Changes something, when its turn has come: on a thread that may block.
    pub(super) fn change_in_line(self, request: Request, data: Bytes) -> Result<(), FileError> {
        let called = self.files.call(self.plan, request, data);
        Handle::current().block_on(called)?.into_result()
    }

    /// Reads a whole file; a large one from what was opened, when `here` has room for it.
    pub(super) fn read_file(self, here: Here, read: ReadFile) -> FileFuture<Bytes> {
        async move {
            match self.files.read_file(self.plan, read.clone()).await? {
                Read::Content(content) => Ok(content),
                Read::Opened(file) => here.read_received(file, read).await,
            }
        }
        .boxed()
    }

    /// Opens a file whose turn has come: on a thread that may block.
    pub(super) fn open_in_line(
        self,
        here: &Here,
        open: exec_env::filesystem::Open,
    ) -> Result<Arc<dyn OpenFile>, FileError> {
        let path = open.path.clone();
        let file = Handle::current().block_on(self.files.open(self.plan, open))?;
        Ok(here.opened(BlockFile::from_file(file, &path)?, &path))
    }
}
