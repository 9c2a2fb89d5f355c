//! Opening, locking and cleaning up a state directory.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    time::Duration,
};

use exec_wire::{id::OutputSeq, process::OutputStream};

use super::*;
use crate::process_journal::tests::{Fixture, append, contents, head, pattern};

fn open(path: &Path) -> Result<StateDir, StateDirError> {
    StateDir::open(path, JournalLimits::default())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn missing_directory_is_created_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a/b");
    let state = open(&path).unwrap();
    for name in ["", "../../a", "processes", "sessions"] {
        let mode = fs::metadata(path.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{name}");
    }
    assert_eq!(fs::read_to_string(path.join("schema")).unwrap(), "1\n");
    assert_eq!(state.keeper_socket(), path.join("keeper.sock"));
    assert_eq!(state.boot_id().len(), 36);
    assert!(!path.join("probe").exists());
}

#[test]
fn unsafe_directory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    drop(open(&path).unwrap());
    for mode in [0o750, 0o701, 0o777, 0o720] {
        set_mode(&path, mode);
        let refused = open(&path).unwrap_err();
        assert!(
            matches!(refused, StateDirError::Permissions { .. }),
            "{refused}"
        );
        assert!(refused.to_string().contains("chmod 700"), "{refused}");
    }
    set_mode(&path, 0o700);
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    for link in [
        link.clone(),
        link.join("."),
        PathBuf::from(format!("{}/", link.display())),
    ] {
        let refused = open(&link).unwrap_err();
        assert!(
            matches!(refused, StateDirError::SymbolicLink(_)),
            "{refused}"
        );
    }
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(matches!(open(&file), Err(StateDirError::NotADirectory(_))));
    let missing = folder.path().join("missing");
    assert!(matches!(
        StateDir::open_read_only(&missing),
        Err(StateDirError::Missing(_))
    ));
    assert!(!missing.exists());
    open(&path).unwrap();
}

#[test]
fn directory_of_another_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        // This account cannot give a directory away, but `/` belongs to another one.
        let refused = open(Path::new("/")).unwrap_err();
        assert!(
            matches!(refused, StateDirError::OtherOwner { owner: 0, .. }),
            "{refused}"
        );
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    drop(open(&path).unwrap());
    std::os::unix::fs::chown(&path, Some(12_345), None).unwrap();
    let refused = open(&path).unwrap_err();
    assert!(
        matches!(refused, StateDirError::OtherOwner { owner: 12_345, .. }),
        "{refused}"
    );
}

#[test]
fn newer_and_damaged_schemas_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    drop(open(&path).unwrap());
    let schema = path.join("schema");
    fs::write(&schema, "2\n").unwrap();
    for refused in [
        open(&path).unwrap_err(),
        StateDir::open_read_only(&path).unwrap_err(),
    ] {
        assert!(
            matches!(refused, StateDirError::NewerSchema { found: 2, .. }),
            "{refused}"
        );
    }
    for text in ["", "0", "one", "-1", "1 2", &"1".repeat(100)] {
        fs::write(&schema, text).unwrap();
        assert!(
            matches!(open(&path), Err(StateDirError::Schema(_))),
            "{text}"
        );
    }
    fs::remove_file(&schema).unwrap();
    open(&path).unwrap();
}

#[test]
fn one_server_uses_a_directory_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let state = open(&path).unwrap();
    let refused = open(&path).unwrap_err();
    assert!(matches!(refused, StateDirError::Locked(_)), "{refused}");
    let reader = StateDir::open_read_only(&path).unwrap();
    assert_eq!(reader.records().unwrap(), []);
    assert_eq!(reader.path(), path);
    drop(state);
    open(&path).unwrap();
}

#[test]
fn lock_is_handed_over_without_a_gap() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let state = open(&path).unwrap();
    let id = state.create(&head()).unwrap().id();
    let lock = state.lock_file().try_clone_to_owned().unwrap();
    drop(state);
    assert!(matches!(open(&path), Err(StateDirError::Locked(_))));
    let limits = JournalLimits::default();
    let state = StateDir::from_parts(&path, lock, limits).unwrap();
    assert_eq!(state.records().unwrap(), [id]);
    assert!(matches!(open(&path), Err(StateDirError::Locked(_))));
    let other: OwnedFd = tempfile::tempfile().unwrap().into();
    let refused = StateDir::from_parts(&path, other, limits).unwrap_err();
    assert!(
        matches!(refused, StateDirError::ForeignLock(_)),
        "{refused}"
    );
}

#[test]
fn records_are_listed_by_creation_across_restarts() {
    let fixture = Fixture::new();
    let mut ids: Vec<_> = (0..20).map(|_| fixture.create().id()).collect();
    let path = fixture.state.path().to_owned();
    drop(fixture.state);
    let state = open(&path).unwrap();
    ids.extend((0..20).map(|_| state.create(&head()).unwrap().id()));
    assert_eq!(state.records().unwrap(), ids);
    state.remove(ids[3]).unwrap();
    state.remove(ids[3]).unwrap();
    ids.remove(3);
    assert_eq!(state.records().unwrap(), ids);
    assert_eq!(state.records.load(Ordering::Relaxed), 39);
    assert_eq!(state.usage().unwrap().records, 39);
    let unknown = RecordId::from_bytes([1; 16]);
    assert!(matches!(
        state.reader(unknown),
        Err(JournalError::UnknownRecord(_))
    ));
}

#[test]
fn interrupted_removal_is_finished_at_the_next_start() {
    let fixture = Fixture::new();
    let id = fixture.create().id();
    let processes = fixture.state.path().join("processes");
    fs::rename(
        processes.join(id.to_string()),
        processes.join(format!("removed-{id}")),
    )
    .unwrap();
    let path = fixture.state.path().to_owned();
    drop(fixture.state);
    let state = open(&path).unwrap();
    assert_eq!(state.records().unwrap(), []);
    assert_eq!(fs::read_dir(processes).unwrap().count(), 0);
}

#[test]
fn head_that_is_too_large_is_refused() {
    let fixture = Fixture::new();
    let large = JournalHead {
        argv: vec!["x".repeat(5 << 20)],
        ..head()
    };
    let refused = fixture.state.create(&large).unwrap_err();
    assert!(
        matches!(refused, JournalError::TooLarge { .. }),
        "{refused}"
    );
    assert_eq!(fixture.state.records().unwrap(), []);
}

#[test]
fn sessions_are_kept_across_restarts() {
    let fixture = Fixture::new();
    let session = SessionRecord {
        id: SessionId::new("0b9e2f0e-6f0c-4f53-9d8e-111111111111"),
        principal: None,
        retention: "durable".to_owned(),
        created_at_ms: 5,
    };
    fixture.state.save_session(&session).unwrap();
    let path = fixture.state.path().to_owned();
    assert_eq!(
        StateDir::open_read_only(&path).unwrap().sessions().unwrap(),
        std::slice::from_ref(&session)
    );
    drop(fixture.state);
    let state = open(&path).unwrap();
    assert_eq!(state.sessions().unwrap(), std::slice::from_ref(&session));
    state.remove_session(&session.id).unwrap();
    assert_eq!(state.sessions().unwrap(), []);
}

/// Time at which the clock shows `later` more than now.
fn host_time(later: Duration, since_boot: Duration, boot_id: &str) -> HostTime {
    let now = HostTime::now(boot_id);
    let later = u64::try_from(later.as_millis()).unwrap();
    HostTime {
        unix_ms: now.unix_ms + later,
        since_boot,
        ..now
    }
}

#[test]
fn old_records_are_removed_unless_they_are_live() {
    const DAY: Duration = Duration::from_secs(86_400);
    let fixture = Fixture::new();
    let ids: Vec<_> = (0..3).map(|_| fixture.create().id()).collect();
    let is_live = |id| id == ids[1];
    let outcome = fixture.state.enforce_limits(is_live);
    assert_eq!((outcome.expired.len(), outcome.usage.records), (0, 3));
    // The clock was set forward in the boot that wrote them.
    let early = host_time(DAY * 9000, DAY, "boot");
    assert_eq!(fixture.state.enforce_limits_at(&early, is_live).expired, []);
    // The clock was set back.
    let back = HostTime {
        unix_ms: 0,
        ..early
    };
    assert_eq!(fixture.state.enforce_limits_at(&back, is_live).expired, []);
    let late = host_time(DAY * 8, DAY, "another boot");
    let outcome = fixture.state.enforce_limits_at(&late, is_live);
    assert_eq!(outcome.expired, [ids[0], ids[2]]);
    assert_eq!(fixture.state.records().unwrap(), [ids[1]]);
    assert_eq!(fixture.state.records.load(Ordering::Relaxed), 1);
}

#[test]
fn oldest_ended_records_are_removed_above_the_total() {
    let limits = JournalLimits {
        total_bytes: 1 << 20,
        ..JournalLimits::default()
    };
    let fixture = Fixture::with_limits(limits);
    let mut ids = Vec::new();
    for _ in 0..6 {
        let mut journal = fixture.create();
        for seq in 1..=5 {
            append(
                &mut journal,
                OutputStream::Stdout,
                seq,
                &pattern(seq, 65_536),
            );
        }
        ids.push(journal.id());
    }
    let (reader, _) = fixture.state.reader(ids[5]).unwrap();
    let outcome = fixture.state.enforce_limits(|id| id == ids[0]);
    assert_eq!(outcome.evicted, ids[1..4]);
    assert_eq!((outcome.failed, outcome.usage.records), (0, 3));
    assert!(outcome.usage.bytes < 1 << 20);
    assert_eq!(fixture.state.usage().unwrap(), outcome.usage);
    assert_eq!(fixture.state.records().unwrap(), [ids[0], ids[4], ids[5]]);
    assert_eq!(contents(&reader).len(), 5);
    assert_eq!(reader.newest().unwrap(), Some(OutputSeq(5)));
}
