use std::{
    cell::Cell,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use exec_wire::{path_uri::PathUri, sandbox::SandboxPolicy};
use tempfile::TempDir;

use super::{CachedPlan, DirectoryStamp, MAX_PLANS, PlanCache, coarse_now};
use crate::{
    facts::{FileFacts, HostFacts, ListError, ListedEntry, PathState},
    policy::{PolicyPurpose, ResolveContext},
    sandboxed_fs::WorkerKey,
};

/// Facts of this host with a count of lookups, and one name that is unknown.
#[derive(Debug, Default)]
struct CountingFacts {
    lookups: Cell<usize>,
    unknown: Option<&'static str>,
}

impl FileFacts for CountingFacts {
    fn lookup(&self, path: &Path) -> PathState {
        self.lookups.set(self.lookups.get() + 1);
        if self.unknown.is_some_and(|name| path.ends_with(name)) {
            return PathState::Unknown;
        }
        HostFacts.lookup(path)
    }

    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        HostFacts.read(path, limit)
    }

    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError> {
        HostFacts.list(path, limit)
    }
}

/// Facts of this host while a mount changes.
struct RemountingFacts {
    plan_cache: PlanCache,
}

impl FileFacts for RemountingFacts {
    fn lookup(&self, path: &Path) -> PathState {
        self.plan_cache.simulate_mount_change();
        HostFacts.lookup(path)
    }

    fn read(&self, path: &Path, limit: usize) -> Option<Vec<u8>> {
        HostFacts.read(path, limit)
    }

    fn list(&self, path: &Path, limit: usize) -> Result<Vec<ListedEntry>, ListError> {
        HostFacts.list(path, limit)
    }
}

/// A workspace `above/root` that the policy makes writable.
struct TestWorkspace {
    dir: TempDir,
    parent: PathBuf,
    root: PathBuf,
    plan_cache: PlanCache,
}

impl TestWorkspace {
    fn new() -> Self {
        // `/var/tmp` changes less often than `/tmp`, which other tests use.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let parent = fs::canonicalize(dir.path()).unwrap().join("above");
        let root = parent.join("root");
        fs::create_dir_all(&root).unwrap();
        let plan_cache = PlanCache::default();
        Self {
            dir,
            parent,
            root,
            plan_cache,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn sandbox(&self) -> SandboxPolicy {
        policy_for(&self.root, "write")
    }

    /// Resolves at a given time. Also returns the number of lookups.
    fn resolve_at(&self, sandbox: &SandboxPolicy, now: Duration) -> (CachedPlan, usize) {
        let facts = CountingFacts::default();
        let cached = self
            .plan_cache
            .get_or_resolve(sandbox, &file_context(), &facts, now);
        (cached.unwrap(), facts.lookups.get())
    }

    fn resolve(&self) -> (CachedPlan, usize) {
        self.resolve_at(&self.sandbox(), coarse_now())
    }

    /// Resolves until the plan is cached, which happens once nothing has changed for a while.
    fn wait_until_cached(&self) -> CachedPlan {
        let end = Instant::now() + TEST_TIMEOUT;
        loop {
            let (cached, lookups) = self.resolve();
            if lookups == 0 {
                return cached;
            }
            assert!(Instant::now() < end, "plan was not cached");
            thread::yield_now();
        }
    }
}

fn policy_for(path: &Path, access: &str) -> SandboxPolicy {
    let path = PathUri::from_native(path).unwrap();
    let entry = serde_json::json!({"path": {"type": "path", "path": path}, "access": access});
    let file_policy = serde_json::json!({"type": "restricted", "entries": [entry]});
    let permissions =
        serde_json::json!({"type": "managed", "file_system": file_policy, "network": "restricted"});
    let sandbox =
        serde_json::json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    serde_json::from_value(sandbox).unwrap()
}

fn file_context() -> ResolveContext {
    ResolveContext {
        purpose: PolicyPurpose::Files,
        cwd: "/".into(),
        tmpdir: None,
        always_readable: Vec::new(),
        protected: Arc::default(),
    }
}

/// A time long after all changes.
fn settled_time() -> Duration {
    coarse_now() + Duration::from_secs(3600)
}

#[test]
fn plan_is_cached_with_its_worker_key() {
    let workspace = TestWorkspace::new();
    let first = workspace.wait_until_cached();
    fs::create_dir(workspace.at("inside")).unwrap();
    let resolved_again = workspace.wait_until_cached();
    assert_eq!(first.plan(), resolved_again.plan());
    assert!(!Arc::ptr_eq(first.plan(), resolved_again.plan()));
    // Resolution never read anything further below.
    fs::write(workspace.at("inside/file"), "").unwrap();
    let again = workspace.wait_until_cached();
    assert_eq!(resolved_again.plan(), again.plan());
    assert_eq!(*again.key(), WorkerKey::capture(again.plan()));
}

#[test]
fn plan_is_resolved_again_when_its_inputs_change() {
    type Change = fn(&TestWorkspace);
    let nothing: Change = |_| {};
    let directory: Change = |workspace| fs::create_dir(workspace.at(".git")).unwrap();
    let pointer: Change = |workspace| {
        for name in ["one", "two"] {
            fs::create_dir(workspace.at(name)).unwrap();
        }
        fs::write(workspace.at(".git"), "gitdir: one").unwrap();
    };
    let cases: [(&str, Change, Change); 10] = [
        ("appears", nothing, directory),
        ("appears as a file", nothing, pointer),
        ("disappears", directory, |workspace| {
            fs::remove_dir(workspace.at(".git")).unwrap();
        }),
        ("becomes a link", directory, |workspace| {
            fs::rename(workspace.at(".git"), workspace.at("git")).unwrap();
            symlink("git", workspace.at(".git")).unwrap();
        }),
        ("is replaced", directory, |workspace| {
            fs::create_dir(workspace.at("new")).unwrap();
            fs::rename(workspace.at("new"), workspace.at(".git")).unwrap();
        }),
        ("is written", pointer, |workspace| {
            fs::write(workspace.at(".git"), "gitdir: two").unwrap();
        }),
        ("target goes", pointer, |workspace| {
            fs::remove_dir(workspace.at("one")).unwrap();
        }),
        ("root is replaced", nothing, |workspace| {
            fs::remove_dir(&workspace.root).unwrap();
            fs::create_dir(&workspace.root).unwrap();
        }),
        ("root is renamed", nothing, |workspace| {
            fs::rename(&workspace.root, workspace.parent.join("else")).unwrap();
        }),
        ("directory above is renamed", nothing, |workspace| {
            fs::rename(&workspace.parent, workspace.dir.path().join("else")).unwrap();
        }),
    ];
    for (name, prepare, change) in cases {
        let workspace = TestWorkspace::new();
        prepare(&workspace);
        let before = workspace.wait_until_cached();
        change(&workspace);
        let (after, lookups) = workspace.resolve();
        assert!(lookups > 0, "{name}");
        assert_ne!(before.key(), after.key(), "{name}");
        assert_eq!(*after.key(), WorkerKey::capture(after.plan()), "{name}");
    }
}

#[test]
fn plan_is_resolved_again_when_parent_permissions_change() {
    let workspace = TestWorkspace::new();
    workspace.wait_until_cached();
    fs::set_permissions(&workspace.parent, Permissions::from_mode(0o711)).unwrap();
    assert!(workspace.resolve().1 > 0);
    // Setting the same mode again counts as a change.
    workspace.wait_until_cached();
    fs::set_permissions(&workspace.parent, Permissions::from_mode(0o711)).unwrap();
    assert!(workspace.resolve().1 > 0);
}

#[test]
fn recently_changed_directory_is_not_cached() {
    let workspace = TestWorkspace::new();
    let stamp = DirectoryStamp::of(&workspace.root).unwrap();
    let changed = fs::metadata(&workspace.root).unwrap();
    let changed = changed
        .modified()
        .unwrap()
        .duration_since(std::time::UNIX_EPOCH);
    let changed = changed.unwrap();
    let (early, late) = (Duration::from_millis(19), Duration::from_millis(2001));
    assert!(!stamp.is_settled(changed + early));
    assert!(!stamp.is_settled(changed - late));
    assert!(stamp.is_settled(changed + late));
    workspace.resolve_at(&workspace.sandbox(), changed + early);
    assert_eq!(workspace.plan_cache.len(), 0);
    workspace.resolve_at(&workspace.sandbox(), settled_time());
    assert_eq!(workspace.plan_cache.len(), 1);
}

#[test]
fn mount_change_clears_the_cache() {
    let workspace = TestWorkspace::new();
    workspace.wait_until_cached();
    workspace.plan_cache.simulate_mount_change();
    assert!(workspace.resolve().1 > 0);
    // A mount that changes during resolution may have affected only a part of it.
    let facts = RemountingFacts {
        plan_cache: workspace.plan_cache.clone(),
    };
    workspace.plan_cache.simulate_mount_change();
    let result = workspace.plan_cache.get_or_resolve(
        &workspace.sandbox(),
        &file_context(),
        &facts,
        settled_time(),
    );
    result.unwrap();
    assert_eq!(workspace.plan_cache.len(), 0);
}

#[test]
fn cache_separates_policies_and_purposes() {
    let workspace = TestWorkspace::new();
    let sandboxes = ["read", "write", "deny"].map(|access| policy_for(&workspace.root, access));
    let plan_cache: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| workspace.resolve_at(sandbox, settled_time()).0)
        .collect();
    assert_eq!(workspace.plan_cache.len(), 3);
    for (sandbox, cached) in sandboxes.iter().zip(&plan_cache) {
        assert_eq!(
            workspace.resolve_at(sandbox, settled_time()).0.plan(),
            cached.plan()
        );
        let same = |other: &&CachedPlan| other.plan() == cached.plan();
        assert_eq!(plan_cache.iter().filter(same).count(), 1);
    }
    let command = ResolveContext {
        purpose: PolicyPurpose::Process,
        ..file_context()
    };
    let cached = workspace
        .plan_cache
        .get_or_resolve(&sandboxes[0], &command, &HostFacts, settled_time())
        .unwrap();
    assert_ne!(cached.plan(), plan_cache[0].plan());
    assert_eq!(workspace.plan_cache.len(), 4);
}

#[test]
fn cache_size_is_limited() {
    let workspace = TestWorkspace::new();
    for number in 0..MAX_PLANS + 3 {
        let path = workspace.at(&number.to_string());
        workspace.resolve_at(&policy_for(&path, "read"), settled_time());
    }
    assert_eq!(workspace.plan_cache.len(), MAX_PLANS);
}

#[test]
fn uncacheable_facts_are_not_cached() {
    let workspace = TestWorkspace::new();
    // The kernel generates these names.
    workspace.resolve_at(
        &policy_for(Path::new("/proc/self/status"), "read"),
        settled_time(),
    );
    let facts = CountingFacts {
        unknown: Some(".aws"),
        ..CountingFacts::default()
    };
    let result = workspace.plan_cache.get_or_resolve(
        &workspace.sandbox(),
        &file_context(),
        &facts,
        settled_time(),
    );
    result.unwrap();
    let long = "x".repeat(200);
    let deep = (0..600).map(|_| "d").collect::<PathBuf>();
    fs::create_dir_all(workspace.root.join(&deep)).unwrap();
    workspace.resolve_at(
        &policy_for(&workspace.root.join(&deep).join(long), "read"),
        settled_time(),
    );
    assert_eq!(workspace.plan_cache.len(), 0);
}

const TEST_TIMEOUT: Duration = Duration::from_secs(20);
