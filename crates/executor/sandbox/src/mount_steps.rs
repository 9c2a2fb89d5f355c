//! Converts a view into mount steps: which mounts to copy, make read-only, attach and cover, in
//! order. Also the steps for `/dev` and `/proc` of a command.
//!
//! Mounts are copied first, while the host's files are visible. Then the view is built from the
//! root downwards. No step creates anything in a directory of the user.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{CString, OsStr},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use exec_spawn::sandbox_setup::{MAX_MOUNT_SLOTS, MissingPath, MountSlot, MountStep};

use crate::plan::{FileView, PathAccess, PathKind, ViewLayer};

/// Returns the mount steps of a view.
///
/// # Errors
/// Fails if the view needs more descriptors than a process may have.
pub(crate) fn mount_steps(
    view: &FileView,
    pseudo_fs: PseudoFs,
) -> Result<Vec<MountStep>, MountStepsError> {
    let view = &without_pseudo_fs(view, pseudo_fs);
    let mut builder = StepBuilder {
        view,
        index: LayerIndex::new(view),
        slots: 0,
        prepare: Vec::new(),
        attach: Vec::new(),
        mask: None,
    };
    let all_writable = view.layers.first().is_some_and(is_writable_root);
    let root =
        (view.base == PathAccess::Hidden && !all_writable).then(|| builder.empty_root(pseudo_fs));
    let mut pseudo_attach = Vec::new();
    if pseudo_fs.processes {
        let (prepare, attach) = proc_steps(builder.slot(), pseudo_fs.account);
        builder.prepare.push(prepare);
        pseudo_attach.extend(attach);
    }
    if pseudo_fs.devices {
        let (prepare, attach) = device_steps(&mut || builder.slot());
        builder.prepare.extend(prepare);
        pseudo_attach.extend(attach);
    }
    let mut pinned: Vec<PathBuf> = pinned_directories(view).into_iter().collect();
    pinned.sort_by_key(|directory| std::cmp::Reverse(directory.components().count()));
    for layer in &view.layers {
        // From the root downwards: parents before layers.
        let depth = layer.path.components().count();
        while let Some(directory) =
            pinned.pop_if(|directory| directory.components().count() < depth)
        {
            builder.attach.push(MountStep::Pin {
                path: c_path(&directory)?,
            });
        }
        builder.add_layer(layer)?;
    }
    for directory in pinned.into_iter().rev() {
        builder.attach.push(MountStep::Pin {
            path: c_path(&directory)?,
        });
    }
    for link in guarded_links(view) {
        builder.attach.push(MountStep::Pin {
            path: c_path(&link)?,
        });
    }
    if builder.slots > MAX_MOUNT_SLOTS {
        return Err(MountStepsError::TooManyRoots);
    }
    let mut steps = builder.prepare;
    match root {
        Some(slot) => steps.push(MountStep::Root { slot }),
        None if all_writable => {}
        None => steps.push(MountStep::ReadOnlyView),
    }
    steps.extend(pseudo_attach);
    steps.extend(builder.attach);
    Ok(steps)
}

/// Why a view cannot be converted.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum MountStepsError {
    /// Caller: too many roots.
    #[error("the policy has more than {MAX_MOUNT_SLOTS} separate roots")]
    TooManyRoots,
    /// Caller: a path contains a NUL byte.
    #[error("a path of the policy contains a NUL byte")]
    Nul,
}

struct StepBuilder<'a> {
    view: &'a FileView,
    index: LayerIndex<'a>,
    slots: usize,
    /// Steps while the host's files are visible.
    prepare: Vec<MountStep>,
    /// Steps that attach mounts afterwards, from the root downwards.
    attach: Vec<MountStep>,
    /// File system that contains the covers.
    mask: Option<MountSlot>,
}

/// Entries of the file system that contains the covers.
const DIRECTORY_COVER: &str = "directory";
const FILE_COVER: &str = "file";
/// Size of a file system that contains only names.
const NAMES_BYTES: u64 = 1 << 20;

impl StepBuilder<'_> {
    fn slot(&mut self) -> MountSlot {
        let slot = MountSlot(u16::try_from(self.slots).unwrap_or(u16::MAX));
        self.slots += 1;
        slot
    }

    /// Creates a root in memory, with mount points and the links of the host's root.
    fn empty_root(&mut self, pseudo_fs: PseudoFs) -> MountSlot {
        let slot = self.slot();
        self.prepare.push(MountStep::Memory {
            slot,
            mode: 0o755,
            bytes: NAMES_BYTES,
        });
        let mut created = BTreeSet::new();
        for (is_present, name) in [(pseudo_fs.devices, "dev"), (pseudo_fs.processes, "proc")] {
            if is_present && created.insert(PathBuf::from(name)) {
                self.prepare
                    .push(directory(slot, constant_text(name), 0o755));
            }
        }
        self.make_mount_points(slot, Path::new("/"), 0o755, &mut created);
        for (link, target) in &self.view.links {
            let Ok(name) = link.strip_prefix("/") else {
                continue;
            };
            let is_below_created = created.iter().any(|created| name.starts_with(created));
            let (Some(path), Some(target)) = (to_c_string(name), to_c_string(target)) else {
                continue;
            };
            // Links below an attached mount already exist.
            if !is_below_created
                || name
                    .parent()
                    .is_some_and(|parent| is_traversal_only(self.view, parent))
            {
                self.make_parents(slot, name, 0o755, &mut created);
                if created.insert(name.to_owned()) {
                    self.prepare.push(MountStep::Link { slot, path, target });
                }
            }
        }
        // Otherwise writes to unmapped paths would appear to succeed.
        self.prepare.push(MountStep::ReadOnly { slot });
        slot
    }

    /// Creates the mount points of the layers directly below `parent`.
    fn make_mount_points(
        &mut self,
        slot: MountSlot,
        parent: &Path,
        mode: u32,
        created: &mut BTreeSet<PathBuf>,
    ) {
        for layer in self.index.children(parent).to_vec() {
            let Ok(relative) = layer.path.strip_prefix(parent) else {
                continue;
            };
            if relative.as_os_str().is_empty() {
                continue;
            }
            self.make_parents(slot, relative, mode, created);
            let Some(path) = to_c_string(relative) else {
                continue;
            };
            if created.insert(relative.to_owned()) {
                self.prepare.push(match layer.kind {
                    PathKind::Directory => directory(slot, path, mode),
                    PathKind::File => MountStep::File {
                        slot,
                        path,
                        mode: 0o644,
                    },
                });
            }
        }
    }

    fn make_parents(
        &mut self,
        slot: MountSlot,
        path: &Path,
        mode: u32,
        created: &mut BTreeSet<PathBuf>,
    ) {
        let ancestors: Vec<&Path> = path.ancestors().skip(1).collect();
        for parent in ancestors.into_iter().rev() {
            if let Some(name) = to_c_string(parent)
                && !parent.as_os_str().is_empty()
                && created.insert(parent.to_owned())
            {
                self.prepare.push(directory(slot, name, mode));
            }
        }
    }

    fn add_layer(&mut self, layer: &ViewLayer) -> Result<(), MountStepsError> {
        let path = c_path(&layer.path)?;
        let outer = self.index.nearest(&layer.path);
        let outer = outer.map_or(self.view.base, |layer| layer.access);
        match (layer.access, outer) {
            (PathAccess::Hidden, _) => self.hide(layer, path),
            // The host's mount is already in place and writable.
            (PathAccess::Write, _) if is_writable_root(layer) => {}
            (PathAccess::Read, PathAccess::Write) => self.attach.push(MountStep::Protect { path }),
            (PathAccess::Write, _) => {
                self.copy(&path, MissingPath::Skip);
            }
            (PathAccess::Read, _) => {
                let slot = self.copy(&path, MissingPath::Skip);
                self.prepare.push(MountStep::ReadOnly { slot });
            }
        }
        Ok(())
    }

    fn copy(&mut self, path: &CString, missing: MissingPath) -> MountSlot {
        let slot = self.slot();
        self.prepare.push(MountStep::Copy {
            path: path.clone(),
            slot,
            missing,
        });
        let path = path.clone();
        self.attach.push(MountStep::Attach { slot, path });
        slot
    }

    fn hide(&mut self, layer: &ViewLayer, path: CString) {
        if layer.kind == PathKind::Directory && !self.index.children(&layer.path).is_empty() {
            // The directory can be traversed, but not listed.
            let slot = self.slot();
            self.prepare.push(MountStep::Memory {
                slot,
                mode: 0o111,
                bytes: NAMES_BYTES,
            });
            self.make_mount_points(slot, &layer.path, 0o111, &mut BTreeSet::new());
            self.prepare.push(MountStep::ReadOnly { slot });
            self.attach.push(MountStep::Attach { slot, path });
            return;
        }
        let mask = match self.mask {
            Some(mask) => mask,
            None => self.make_mask(),
        };
        let entry = constant_text(match layer.kind {
            PathKind::Directory => DIRECTORY_COVER,
            PathKind::File => FILE_COVER,
        });
        self.attach.push(MountStep::Cover {
            slot: mask,
            entry,
            path,
        });
    }

    /// Creates an empty directory and an empty file without any permission. The file system is
    /// read-only, so that even their owner cannot change the mode.
    fn make_mask(&mut self) -> MountSlot {
        let slot = self.slot();
        self.mask = Some(slot);
        self.prepare.extend([
            MountStep::Memory {
                slot,
                mode: 0o755,
                bytes: NAMES_BYTES,
            },
            directory(slot, constant_text(DIRECTORY_COVER), 0),
            MountStep::File {
                slot,
                path: constant_text(FILE_COVER),
                mode: 0,
            },
            MountStep::ReadOnly { slot },
        ]);
        slot
    }
}

/// Returns the directories between a writable root and a protected path.
///
/// A mount point can be neither renamed nor removed. Otherwise a command could move the parent of a
/// protected path away, and replace it, or let the next command find it at a path that the policy
/// does not cover.
pub(crate) fn pinned_directories(view: &FileView) -> BTreeSet<PathBuf> {
    let protected = view
        .layers
        .iter()
        .filter(|layer| layer.access != PathAccess::Write);
    let protected = protected.filter_map(|layer| layer.path.parent());
    let guarded_directories = view.forbidden.iter().map(|name| name.directory.as_path());
    let index = LayerIndex::new(view);
    let mut pinned = BTreeSet::new();
    for directory in protected.chain(guarded_directories) {
        // `/proc` and `/dev` belong to the command.
        if directory.starts_with("/proc") || directory.starts_with("/dev") {
            continue;
        }
        let writable_ancestors = directory.ancestors().take_while(|path| {
            index.at(path).is_none() && index.access(path) == Some(PathAccess::Write)
        });
        pinned.extend(writable_ancestors.map(Path::to_owned));
    }
    pinned
}

/// Returns the forbidden names that are symbolic links. They must not be removed either, or their
/// targets would not be protected for the next command.
fn guarded_links(view: &FileView) -> impl Iterator<Item = PathBuf> {
    let paths = view
        .forbidden
        .iter()
        .map(|name| name.directory.join(&name.name));
    paths.filter(|path| path.is_symlink())
}

fn is_writable_root(layer: &ViewLayer) -> bool {
    layer.path == Path::new("/") && layer.access == PathAccess::Write
}

/// Removes layers below `/dev` and `/proc`, which would expose the host's devices and processes
/// again.
fn without_pseudo_fs(view: &FileView, pseudo_fs: PseudoFs) -> FileView {
    let mut view = view.clone();
    let is_pseudo = |path: &Path| {
        let device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        (pseudo_fs.devices && device) || (pseudo_fs.processes && path.starts_with("/proc"))
    };
    view.layers.retain(|layer| !is_pseudo(&layer.path));
    view
}

/// Layers by path and by parent layer.
struct LayerIndex<'a> {
    by_path: BTreeMap<&'a Path, &'a ViewLayer>,
    by_parent: BTreeMap<&'a Path, Vec<&'a ViewLayer>>,
}

impl<'a> LayerIndex<'a> {
    fn new(view: &'a FileView) -> Self {
        let by_path = view
            .layers
            .iter()
            .map(|layer| (layer.path.as_path(), layer));
        let mut index = Self {
            by_path: by_path.collect(),
            by_parent: BTreeMap::new(),
        };
        for layer in &view.layers {
            let nearest = index.nearest(&layer.path);
            let parent = nearest.map_or(Path::new("/"), |layer| &layer.path);
            index.by_parent.entry(parent).or_default().push(layer);
        }
        index
    }

    /// Returns the nearest layer above a path, excluding the path itself.
    fn nearest(&self, path: &Path) -> Option<&'a ViewLayer> {
        let mut ancestors = path.ancestors().skip(1);
        ancestors.find_map(|path| self.by_path.get(path).copied())
    }

    /// Returns the layers directly below this one. For the root, includes layers without a parent.
    fn children(&self, path: &Path) -> &[&'a ViewLayer] {
        self.by_parent.get(path).map_or(&[], Vec::as_slice)
    }

    /// Returns the layer at a path.
    fn at(&self, path: &Path) -> Option<&'a ViewLayer> {
        self.by_path.get(path).copied()
    }

    /// Returns the access to a path, if a layer covers it.
    fn access(&self, path: &Path) -> Option<PathAccess> {
        let layer = self.at(path).or_else(|| self.nearest(path));
        layer.map(|layer| layer.access)
    }
}

/// Returns whether a path in a view with a hidden base only leads to other paths.
fn is_traversal_only(view: &FileView, path: &Path) -> bool {
    view.access(&Path::new("/").join(path)) == PathAccess::Hidden
}

fn directory(slot: MountSlot, path: CString, mode: u32) -> MountStep {
    MountStep::Directory { slot, path, mode }
}

fn to_c_string(path: &Path) -> Option<CString> {
    CString::new(OsStr::as_bytes(path.as_os_str())).ok()
}

fn c_path(path: &Path) -> Result<CString, MountStepsError> {
    to_c_string(path).ok_or(MountStepsError::Nul)
}

/// Pseudo file systems of a view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct PseudoFs {
    /// A new `/dev` with harmless devices. Otherwise the view decides whether the host's is
    /// visible.
    pub(crate) devices: bool,
    /// A new `/proc` with the command's own processes. Otherwise the view decides whether the
    /// host's is visible.
    pub(crate) processes: bool,
    /// User id of the command.
    pub(crate) account: u32,
}

/// Devices that every command may use.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];
/// Size limit of shared memory.
const SHARED_MEMORY_BYTES: u64 = 1 << 30;
/// Size limit of `/dev` itself, which contains only names.
const DIRECTORY_BYTES: u64 = 64 << 10;
/// Entries of `/proc` that uid 0 may write without any capability, and that affect the host.
const WRITABLE_BY_ROOT: [&str; 9] = [
    SYSCTL_DIRECTORY,
    "sysrq-trigger",
    "irq",
    "bus",
    "fs",
    "acpi",
    "scsi",
    "driver",
    "dynamic_debug",
];
const SYSCTL_DIRECTORY: &str = "sys";

/// Returns the paths that must be read-only in every new `/proc` of uid 0. Includes `/proc/sys`
/// even if it does not exist here: then protecting it fails, and the command does not start.
pub(crate) fn writable_host_settings() -> impl Iterator<Item = PathBuf> {
    let paths = WRITABLE_BY_ROOT.map(|name| Path::new("/proc").join(name));
    let settings = Path::new("/proc").join(SYSCTL_DIRECTORY);
    paths
        .into_iter()
        .filter(move |path| *path == settings || path.exists())
}

/// Returns the steps that prepare `/dev` while the host's is visible, and those that attach it.
fn device_steps(slots: &mut impl FnMut() -> MountSlot) -> (Vec<MountStep>, Vec<MountStep>) {
    let directory = slots();
    let mut prepare = vec![MountStep::Memory {
        slot: directory,
        mode: 0o755,
        bytes: DIRECTORY_BYTES,
    }];
    let mut attach = Vec::new();
    for name in DEVICES {
        let slot = slots();
        let path = constant_text(&format!("/dev/{name}"));
        prepare.push(MountStep::File {
            slot: directory,
            path: constant_text(name),
            mode: 0o600,
        });
        prepare.push(MountStep::Copy {
            path: path.clone(),
            slot,
            missing: MissingPath::Skip,
        });
        attach.push(MountStep::Attach { slot, path });
    }
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        prepare.push(MountStep::Link {
            slot: directory,
            path: constant_text(name),
            target: constant_text(target),
        });
    }
    let (terminals, memory) = (slots(), slots());
    for name in ["pts", "shm"] {
        prepare.push(MountStep::Directory {
            slot: directory,
            path: constant_text(name),
            mode: 0o755,
        });
    }
    prepare.push(MountStep::Terminals { slot: terminals });
    prepare.push(MountStep::Memory {
        slot: memory,
        mode: 0o1777,
        bytes: SHARED_MEMORY_BYTES,
    });
    prepare.push(MountStep::ReadOnly { slot: directory });
    attach.push(MountStep::Attach {
        slot: terminals,
        path: constant_text("/dev/pts"),
    });
    attach.push(MountStep::Attach {
        slot: memory,
        path: constant_text("/dev/shm"),
    });
    let attach_directory = MountStep::Attach {
        slot: directory,
        path: constant_text("/dev"),
    };
    (
        prepare,
        std::iter::once(attach_directory).chain(attach).collect(),
    )
}

/// Returns the steps that create and attach a `/proc` with the command's own processes.
fn proc_steps(slot: MountSlot, account: u32) -> (MountStep, Vec<MountStep>) {
    let mut attach = vec![MountStep::Attach {
        slot,
        path: constant_text("/proc"),
    }];
    if account == 0 {
        attach.extend(writable_host_settings().map(|path| MountStep::Protect {
            path: constant_text(&path.to_string_lossy()),
        }));
    }
    (MountStep::Processes { slot }, attach)
}

fn constant_text(constant_text: &str) -> CString {
    // Only constants of this module are converted, which contain no NUL.
    CString::new(constant_text).unwrap_or_default()
}
