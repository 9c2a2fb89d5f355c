//! Tests with real processes and a real kernel.

mod changes;
mod reads;
mod watches;
mod workers;

use std::{
    ffi::CString,
    fs,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use exec_env::filesystem::{FileError, OpenFileRequest};
use exec_fs::WholeFile;
use exec_process::spawner::Spawner;
use exec_spawn::sandbox_setup::{MissingPath, MountSlot, MountStep, NamespaceSetup, SandboxSetup};
use exec_wire::{
    fs::{GetMetadata, OpenMode, ReadFile, WriteFile},
    path_uri::PathUri,
};
use futures_util::future::{FutureExt, ready};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use tempfile::TempDir;

use super::{SandboxedFs, SandboxedRead, SetupFn, WorkerLimits, WorkerRequest};
use crate::plan::{self, FileView, NetworkScope, PathAccess, PathKind, SandboxPlan, ViewLayer};

/// A writable directory `inside`, and a directory `outside`.
struct TestFs {
    _dir: TempDir,
    inside: PathBuf,
    outside: PathBuf,
    files: SandboxedFs,
}

impl TestFs {
    fn new() -> Self {
        Self::with(WorkerLimits::default())
    }

    fn with(limits: WorkerLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let [inside, outside] = ["inside", "outside"].map(|name| root.join(name));
        for (directory, content) in [(&inside, "inside"), (&outside, "outside")] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), content).unwrap();
        }
        let setup_for: SetupFn = Arc::new(|plan| ready(setup_for(&plan)).boxed());
        let files = SandboxedFs::with_setup(Spawner::default(), setup_for, limits);
        Self {
            _dir: dir,
            inside,
            outside,
            files,
        }
    }

    /// Plan in which everything is readable.
    fn wide(&self) -> Arc<SandboxPlan> {
        self.plan(PathAccess::Read)
    }

    /// Plan in which only `inside` is readable.
    fn narrow(&self) -> Arc<SandboxPlan> {
        self.plan(PathAccess::Hidden)
    }

    /// Plan in which everything is readable, and one file inside is not writable.
    fn protected(&self, file: PathBuf) -> Arc<SandboxPlan> {
        let layer = ViewLayer {
            path: file,
            kind: PathKind::File,
            access: PathAccess::Read,
        };
        self.plan_with(PathAccess::Read, vec![layer])
    }

    fn plan(&self, base: PathAccess) -> Arc<SandboxPlan> {
        self.plan_with(base, Vec::new())
    }

    fn plan_with(&self, base: PathAccess, more: Vec<ViewLayer>) -> Arc<SandboxPlan> {
        let mut layers = vec![ViewLayer {
            path: self.inside.clone(),
            kind: PathKind::Directory,
            access: PathAccess::Write,
        }];
        layers.extend(more);
        Arc::new(SandboxPlan {
            files: plan::FileAccess::View(FileView {
                base,
                layers,
                forbidden: Vec::new(),
                links: Vec::new(),
            }),
            network: NetworkScope::Host,
        })
    }

    async fn read(&self, plan: &Arc<SandboxPlan>, path: &Path) -> Result<Vec<u8>, FileError> {
        let read = read(path);
        match self.files.read_file(Arc::clone(plan), read.clone()).await? {
            SandboxedRead::Content(content) => Ok(content.to_vec()),
            SandboxedRead::Opened(file) => WholeFile::from_file(file, &read)?.read(),
        }
    }

    async fn write(
        &self,
        plan: &Arc<SandboxPlan>,
        path: &Path,
        data: &[u8],
    ) -> Result<(), FileError> {
        let data = Bytes::copy_from_slice(data);
        let request = WorkerRequest::WriteFile(write(path));
        let reply = self.files.call(Arc::clone(plan), request, data).await?;
        reply.into_result()
    }

    async fn open(&self, path: &Path, mode: OpenMode) -> Result<OwnedFd, FileError> {
        let open = OpenFileRequest {
            path: uri(path),
            mode,
            sandbox: None,
        };
        self.files.open(self.wide(), open).await
    }

    /// Makes a request, so that a worker exists; returns its process id.
    async fn worker_pid(&self, plan: &Arc<SandboxPlan>) -> Pid {
        let get = WorkerRequest::Metadata(GetMetadata {
            path: uri(&self.inside),
            follow_symlinks: None,
            details: false,
            sandbox: None,
        });
        self.files
            .call(Arc::clone(plan), get, Bytes::new())
            .await
            .unwrap();
        let pid = self.files.idle_pids(plan).pop().unwrap();
        Pid::from_raw(pid.try_into().unwrap()).unwrap()
    }
}

/// Enforces a plan of these tests.
fn setup_for(plan: &SandboxPlan) -> Result<SandboxSetup, FileError> {
    let plan::FileAccess::View(view) = &plan.files else {
        return Err(FileError::Refused("cannot be enforced".to_owned()));
    };
    let slots = || (0..).map(MountSlot).zip(&view.layers);
    let mut steps = Vec::new();
    for (slot, layer) in slots() {
        steps.push(MountStep::Copy {
            path: text(&layer.path),
            slot,
            missing: MissingPath::Fail,
        });
        if layer.access == PathAccess::Read {
            steps.push(MountStep::ReadOnly { slot });
        }
    }
    if view.base == PathAccess::Hidden {
        let root = MountSlot(100);
        steps.push(MountStep::Memory {
            slot: root,
            mode: 0o755,
            bytes: 1 << 20,
        });
        for layer in &view.layers {
            let ancestors: Vec<_> = layer.path.ancestors().collect();
            for directory in ancestors.into_iter().rev().skip(1) {
                steps.push(MountStep::Directory {
                    slot: root,
                    path: text(directory.strip_prefix("/").unwrap()),
                    mode: 0o755,
                });
            }
        }
        steps.push(MountStep::Root { slot: root });
    }
    steps.push(MountStep::ReadOnlyView);
    steps.extend(slots().map(|(slot, layer)| MountStep::Attach {
        slot,
        path: text(&layer.path),
    }));
    Ok(SandboxSetup {
        namespaces: Some(NamespaceSetup {
            user: true,
            processes: false,
            network: None,
            steps,
        }),
        ..SandboxSetup::default()
    })
}

fn text(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

fn uri(path: &Path) -> PathUri {
    PathUri::from_native(path).unwrap()
}

fn read(path: &Path) -> ReadFile {
    ReadFile {
        path: uri(path),
        follow_symlinks: None,
        sandbox: None,
    }
}

fn write(path: &Path) -> WriteFile {
    WriteFile {
        path: uri(path),
        data_base64: None,
        follow_symlinks: None,
        create_parents: false,
        atomic: false,
        mode: None,
        sandbox: None,
    }
}

fn signal(pid: Pid, signal: Signal) {
    kill_process(pid, signal).unwrap();
}

/// Waits until a process has exited.
async fn wait_for_exit(pid: Pid) {
    let Ok(process) = pidfd_open(pid, PidfdFlags::NONBLOCK) else {
        return;
    };
    let exited = tokio::task::spawn_blocking(move || {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        let time = Timespec::try_from(TEST_TIMEOUT).unwrap();
        poll(&mut fds, Some(&time))
    });
    assert_eq!(exited.await.unwrap(), Ok(1), "process {pid:?} still runs");
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
