use std::{
    cell::Cell,
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use exec_wire::{path_uri::PathUri, sandbox::Sandbox};
use tempfile::TempDir;

use super::{MAX_PLANS, Planned, Plans, coarse_now, evidence::Stamp};
use crate::{
    facts::{Facts, Found, HostFacts, ListError, Listed},
    files::Key,
    policy::{Context, Purpose},
};

/// Facts of this host that count how often they are asked for, and know nothing of one name.
#[derive(Debug, Default)]
struct Counting {
    looks: Cell<usize>,
    unknown: Option<&'static str>,
}

impl Facts for Counting {
    fn look(&self, path: &Path) -> Found {
        self.looks.set(self.looks.get() + 1);
        if self.unknown.is_some_and(|name| path.ends_with(name)) {
            return Found::Unknown;
        }
        HostFacts.look(path)
    }

    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>> {
        HostFacts.read(path, most)
    }

    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError> {
        HostFacts.list(path, most)
    }
}

/// Facts of this host while something is mounted.
struct Mounting {
    plans: Plans,
}

impl Facts for Mounting {
    fn look(&self, path: &Path) -> Found {
        self.plans.change_mounts();
        HostFacts.look(path)
    }

    fn read(&self, path: &Path, most: usize) -> Option<Vec<u8>> {
        HostFacts.read(path, most)
    }

    fn list(&self, path: &Path, most: usize) -> Result<Vec<Listed>, ListError> {
        HostFacts.list(path, most)
    }
}

/// A directory `above/root` that a policy allows to write.
struct Scene {
    dir: TempDir,
    above: PathBuf,
    root: PathBuf,
    plans: Plans,
}

impl Scene {
    fn new() -> Self {
        // Fewer files come and go there than in `/tmp`, where other tests work.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let above = fs::canonicalize(dir.path()).unwrap().join("above");
        let root = above.join("root");
        fs::create_dir_all(&root).unwrap();
        let plans = Plans::default();
        Self {
            dir,
            above,
            root,
            plans,
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn sandbox(&self) -> Sandbox {
        policy(&self.root, "write")
    }

    /// Asks at a time. Tells how often files were looked at, too.
    fn ask_at(&self, sandbox: &Sandbox, now: Duration) -> (Planned, usize) {
        let facts = Counting::default();
        let planned = self.plans.planned(sandbox, &files(), &facts, now);
        (planned.unwrap(), facts.looks.get())
    }

    fn ask(&self) -> (Planned, usize) {
        self.ask_at(&self.sandbox(), coarse_now())
    }

    /// Asks until the plan is remembered, which it is once nothing has changed for a while.
    fn remembered(&self) -> Planned {
        let end = Instant::now() + PATIENCE;
        loop {
            let (planned, looks) = self.ask();
            if looks == 0 {
                return planned;
            }
            assert!(Instant::now() < end, "nothing is remembered");
            thread::yield_now();
        }
    }
}

fn policy(path: &Path, access: &str) -> Sandbox {
    let path = PathUri::from_native(path).unwrap();
    let entry = serde_json::json!({"path": {"type": "path", "path": path}, "access": access});
    let files = serde_json::json!({"type": "restricted", "entries": [entry]});
    let permissions =
        serde_json::json!({"type": "managed", "file_system": files, "network": "restricted"});
    let sandbox =
        serde_json::json!({"permissions": permissions, "windowsSandboxLevel": "disabled"});
    serde_json::from_value(sandbox).unwrap()
}

fn files() -> Context {
    Context {
        purpose: Purpose::Files,
        cwd: "/".into(),
        tmpdir: None,
        always_readable: Vec::new(),
        protected: Arc::default(),
    }
}

/// A time at which everything that is there has not changed for long.
fn later() -> Duration {
    coarse_now() + Duration::from_secs(3600)
}

#[test]
fn a_plan_is_remembered_with_the_files_that_it_names() {
    let scene = Scene::new();
    let first = scene.remembered();
    fs::create_dir(scene.at("inside")).unwrap();
    let anew = scene.remembered();
    assert_eq!(first.plan(), anew.plan());
    assert!(!Arc::ptr_eq(first.plan(), anew.plan()));
    // What changes further below was never looked at.
    fs::write(scene.at("inside/file"), "").unwrap();
    let again = scene.remembered();
    assert_eq!(anew.plan(), again.plan());
    assert_eq!(*again.key(), Key::now(again.plan()));
}

#[test]
fn a_plan_is_made_anew_when_what_it_was_made_from_has_changed() {
    type Change = fn(&Scene);
    let nothing: Change = |_| {};
    let directory: Change = |scene| fs::create_dir(scene.at(".git")).unwrap();
    let pointer: Change = |scene| {
        for name in ["one", "two"] {
            fs::create_dir(scene.at(name)).unwrap();
        }
        fs::write(scene.at(".git"), "gitdir: one").unwrap();
    };
    let cases: [(&str, Change, Change); 10] = [
        ("appears", nothing, directory),
        ("appears as a file", nothing, pointer),
        ("disappears", directory, |scene| {
            fs::remove_dir(scene.at(".git")).unwrap();
        }),
        ("becomes a link", directory, |scene| {
            fs::rename(scene.at(".git"), scene.at("git")).unwrap();
            symlink("git", scene.at(".git")).unwrap();
        }),
        ("is replaced", directory, |scene| {
            fs::create_dir(scene.at("new")).unwrap();
            fs::rename(scene.at("new"), scene.at(".git")).unwrap();
        }),
        ("is written", pointer, |scene| {
            fs::write(scene.at(".git"), "gitdir: two").unwrap();
        }),
        ("target goes", pointer, |scene| {
            fs::remove_dir(scene.at("one")).unwrap();
        }),
        ("root is replaced", nothing, |scene| {
            fs::remove_dir(&scene.root).unwrap();
            fs::create_dir(&scene.root).unwrap();
        }),
        ("root is renamed", nothing, |scene| {
            fs::rename(&scene.root, scene.above.join("else")).unwrap();
        }),
        ("directory above is renamed", nothing, |scene| {
            fs::rename(&scene.above, scene.dir.path().join("else")).unwrap();
        }),
    ];
    for (name, prepare, change) in cases {
        let scene = Scene::new();
        prepare(&scene);
        let before = scene.remembered();
        change(&scene);
        let (after, looks) = scene.ask();
        assert!(looks > 0, "{name}");
        assert_ne!(before.key(), after.key(), "{name}");
        assert_eq!(*after.key(), Key::now(after.plan()), "{name}");
    }
}

#[test]
fn a_plan_is_made_anew_when_a_directory_above_has_other_permissions() {
    let scene = Scene::new();
    scene.remembered();
    fs::set_permissions(&scene.above, Permissions::from_mode(0o711)).unwrap();
    assert!(scene.ask().1 > 0);
    // The same once more counts as a change as well.
    scene.remembered();
    fs::set_permissions(&scene.above, Permissions::from_mode(0o711)).unwrap();
    assert!(scene.ask().1 > 0);
}

#[test]
fn what_has_just_changed_is_not_remembered() {
    let scene = Scene::new();
    let stamp = Stamp::of(&scene.root).unwrap();
    let changed = fs::metadata(&scene.root).unwrap();
    let changed = changed
        .modified()
        .unwrap()
        .duration_since(std::time::UNIX_EPOCH);
    let changed = changed.unwrap();
    let (early, late) = (Duration::from_millis(19), Duration::from_millis(2001));
    assert!(!stamp.is_settled(changed + early));
    assert!(!stamp.is_settled(changed - late));
    assert!(stamp.is_settled(changed + late));
    scene.ask_at(&scene.sandbox(), changed + early);
    assert_eq!(scene.plans.len(), 0);
    scene.ask_at(&scene.sandbox(), later());
    assert_eq!(scene.plans.len(), 1);
}

#[test]
fn a_change_of_mounts_forgets_everything() {
    let scene = Scene::new();
    scene.remembered();
    scene.plans.change_mounts();
    assert!(scene.ask().1 > 0);
    // A mount that changes while a plan is made could have been seen by half of it.
    let facts = Mounting {
        plans: scene.plans.clone(),
    };
    scene.plans.change_mounts();
    let asked = scene
        .plans
        .planned(&scene.sandbox(), &files(), &facts, later());
    asked.unwrap();
    assert_eq!(scene.plans.len(), 0);
}

#[test]
fn policies_and_what_they_are_for_do_not_mix() {
    let scene = Scene::new();
    let sandboxes = ["read", "write", "deny"].map(|access| policy(&scene.root, access));
    let plans: Vec<_> = sandboxes
        .iter()
        .map(|sandbox| scene.ask_at(sandbox, later()).0)
        .collect();
    assert_eq!(scene.plans.len(), 3);
    for (sandbox, planned) in sandboxes.iter().zip(&plans) {
        assert_eq!(scene.ask_at(sandbox, later()).0.plan(), planned.plan());
        let same = |other: &&Planned| other.plan() == planned.plan();
        assert_eq!(plans.iter().filter(same).count(), 1);
    }
    let command = Context {
        purpose: Purpose::Process,
        ..files()
    };
    let planned = scene
        .plans
        .planned(&sandboxes[0], &command, &HostFacts, later())
        .unwrap();
    assert_ne!(planned.plan(), plans[0].plan());
    assert_eq!(scene.plans.len(), 4);
}

#[test]
fn only_so_many_plans_are_remembered() {
    let scene = Scene::new();
    for number in 0..MAX_PLANS + 3 {
        let path = scene.at(&number.to_string());
        scene.ask_at(&policy(&path, "read"), later());
    }
    assert_eq!(scene.plans.len(), MAX_PLANS);
}

#[test]
fn what_may_change_unnoticed_is_not_remembered() {
    let scene = Scene::new();
    // The kernel makes these names up.
    scene.ask_at(&policy(Path::new("/proc/self/status"), "read"), later());
    let facts = Counting {
        unknown: Some(".aws"),
        ..Counting::default()
    };
    let asked = scene
        .plans
        .planned(&scene.sandbox(), &files(), &facts, later());
    asked.unwrap();
    let long = "x".repeat(200);
    let deep = (0..600).map(|_| "d").collect::<PathBuf>();
    fs::create_dir_all(scene.root.join(&deep)).unwrap();
    scene.ask_at(&policy(&scene.root.join(&deep).join(long), "read"), later());
    assert_eq!(scene.plans.len(), 0);
}

const PATIENCE: Duration = Duration::from_secs(20);
