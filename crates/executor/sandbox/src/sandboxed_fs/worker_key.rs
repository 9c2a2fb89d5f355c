//! Key of the workers that may serve a plan.
//!
//! The mounts and rules of a worker are bound to the files that the plan's paths named when the
//! worker started. If a directory was recreated or an editor replaced a file since then, the worker
//! would access the new file as if no layer covered it.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    sync::Arc,
};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::plan::{FileAccess, SandboxPlan};

/// A plan, and the identity of the files that its paths name.
#[derive(Clone, Debug)]
pub(crate) struct WorkerKey {
    plan: Arc<SandboxPlan>,
    files: Vec<Option<InodeIdentity>>,
    /// Hash of the fields above: a key is created once and looked up for each request.
    hash: u64,
}

/// Identity of a file. Inode numbers are reused, so the birth time is part of it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct InodeIdentity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
    birth: (i64, u32),
}

impl WorkerKey {
    /// Captures the files that the plan's paths name now.
    pub(crate) fn capture(plan: &Arc<SandboxPlan>) -> Self {
        let files: Vec<_> = Self::relevant_paths(plan)
            .into_iter()
            .map(inode_identity)
            .collect();
        let mut hasher = DefaultHasher::new();
        (plan, &files).hash(&mut hasher);
        Self {
            plan: Arc::clone(plan),
            files,
            hash: hasher.finish(),
        }
    }

    /// Returns the paths of a plan that must keep their file identity.
    pub(crate) fn relevant_paths(plan: &SandboxPlan) -> Vec<&Path> {
        let FileAccess::View(view) = &plan.files else {
            return Vec::new();
        };
        let mut relevant_paths: Vec<_> = view.layers.iter().map(|layer| &*layer.path).collect();
        // Forbidden names mostly share a directory, which often is a layer.
        let mut last = None;
        for forbidden in &view.forbidden {
            let directory = &*forbidden.directory;
            let is_layer = || view.layers.iter().any(|layer| layer.path == directory);
            if last != Some(directory) && !is_layer() {
                relevant_paths.push(directory);
            }
            last = Some(directory);
        }
        relevant_paths
    }
}

impl PartialEq for WorkerKey {
    fn eq(&self, other: &Self) -> bool {
        // Keys that share a plan skip the comparison of its paths.
        self.hash == other.hash
            && self.files == other.files
            && (Arc::ptr_eq(&self.plan, &other.plan) || self.plan == other.plan)
    }
}

impl Eq for WorkerKey {}

impl Hash for WorkerKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Returns the identity of the file at a path without symbolic links. `None` if it cannot be read.
fn inode_identity(path: &Path) -> Option<InodeIdentity> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    let fields = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
    let stat = statx(CWD, path, flags, fields).ok()?;
    Some(InodeIdentity {
        mount: stat.stx_mnt_id,
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        inode: stat.stx_ino,
        birth: (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::{
        plan::{FileView, ForbiddenName, NetworkScope, PathAccess, PathKind, ViewLayer},
        plan_cache::coarse_now,
    };

    fn plan(layer: PathBuf, guarded: PathBuf) -> Arc<SandboxPlan> {
        Arc::new(SandboxPlan {
            files: FileAccess::View(FileView {
                base: PathAccess::Read,
                layers: vec![ViewLayer {
                    path: layer,
                    kind: PathKind::Directory,
                    access: PathAccess::Write,
                }],
                forbidden: vec![ForbiddenName {
                    directory: guarded,
                    name: ".git".into(),
                }],
                links: Vec::new(),
            }),
            network: NetworkScope::None,
        })
    }

    #[test]
    fn key_changes_when_a_path_names_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let [layer, guarded] = ["layer", "guarded"].map(|name| dir.path().join(name));
        for directory in [&layer, &guarded] {
            fs::create_dir(directory).unwrap();
        }
        let plan = plan(layer.clone(), guarded.clone());
        let mut last = WorkerKey::capture(&plan);
        // A change inside the directory does not change its identity.
        fs::write(layer.join("file"), "").unwrap();
        fs::remove_file(layer.join("file")).unwrap();
        assert_eq!(WorkerKey::capture(&plan), last);
        for directory in [&layer, &guarded] {
            // Birth times within one clock tick are equal.
            let born = coarse_now();
            while coarse_now() == born {
                std::thread::yield_now();
            }
            fs::remove_dir(directory).unwrap();
            fs::create_dir(directory).unwrap();
            let key = WorkerKey::capture(&plan);
            assert_ne!(key, last);
            last = key;
        }
    }
}
