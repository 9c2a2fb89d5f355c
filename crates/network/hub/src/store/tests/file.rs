use std::{fs, os::unix::fs::PermissionsExt as _};

use redb::TableDefinition;

use super::{epoch, key, new, presence};
use crate::store::{OpenError, RedbStore, Store};

#[tokio::test]
async fn owners_registrations_and_the_key_survive_a_restart_and_presence_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    let signing_key = store.signing_key().await.unwrap();
    let registration = store
        .register(new("env", "alice", &key(), epoch()))
        .await
        .unwrap();
    store.attach(presence(&registration)).await.unwrap();
    drop(store);

    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    assert_eq!(store.signing_key().await.unwrap(), signing_key);
    let found = store.registration(&registration.environment).await.unwrap();
    assert_eq!(found.as_ref(), Some(&registration));
    assert_eq!(
        store.presence(&registration.environment).await.unwrap(),
        None
    );
    assert!(
        store
            .register(new("env", "bob", &key(), epoch()))
            .await
            .is_err()
    );
}

#[test]
fn two_hubs_do_not_share_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let _store = RedbStore::open(directory.path(), epoch()).unwrap();
    let second = RedbStore::open(directory.path(), epoch());
    assert!(matches!(second, Err(OpenError::InUse { .. })), "{second:?}");
}

#[test]
fn nobody_else_reads_the_file() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a/b");
    drop(RedbStore::open(&directory, epoch()).unwrap());
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(directory.join("hub.redb")), 0o600);
    assert_eq!(mode(directory), 0o700);
}

#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    for content in [&b"not a database"[..], &[0; 8192], &[0xff; 100_000]] {
        fs::write(&path, content).unwrap();
        let opened = RedbStore::open(directory.path(), epoch());
        assert!(
            matches!(opened, Err(OpenError::NotOurs { .. })),
            "{opened:?}"
        );
        assert_eq!(fs::read(&path).unwrap(), content);
    }
}

#[test]
fn a_damaged_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    drop(RedbStore::open(directory.path(), epoch()).unwrap());
    let mut content = fs::read(&path).unwrap();
    content.truncate(content.len() / 2);
    fs::write(&path, &content).unwrap();
    let opened = RedbStore::open(directory.path(), epoch());
    assert!(
        matches!(opened, Err(OpenError::NotOurs { .. })),
        "{opened:?}"
    );
}

#[tokio::test]
async fn a_store_that_opens_is_whole_wherever_its_file_was_damaged() {
    const PLACES: usize = 64;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    let store = RedbStore::open(directory.path(), epoch()).unwrap();
    let key = key();
    let environment = |number: usize| format!("env{number}");
    for number in 0..20 {
        let new = new(&environment(number), "alice", &key, epoch());
        store.register(new).await.unwrap();
    }
    drop(store);
    let content = fs::read(&path).unwrap();
    let used = content.iter().rposition(|byte| *byte != 0).unwrap();
    let mut refused = 0;
    for place in 0..PLACES {
        let mut damaged = content.clone();
        let at = place * used / PLACES;
        for byte in damaged.iter_mut().skip(at).take(512) {
            *byte ^= 0x55;
        }
        fs::write(&path, damaged).unwrap();
        let store = match RedbStore::open(directory.path(), epoch()) {
            Ok(store) => store,
            Err(error) => {
                assert!(matches!(error, OpenError::NotOurs { .. }), "{error:?}");
                refused += 1;
                continue;
            }
        };
        for number in 0..20 {
            let name = environment(number);
            let known = store.registration(&name.parse().unwrap()).await.unwrap();
            assert!(known.is_some(), "{name} is lost by damage at {at}");
            let new = new(&name, "alice", &key, epoch());
            store.register(new).await.unwrap();
        }
    }
    assert!(refused > 0, "nothing was damaged");
}

#[test]
fn a_database_of_another_program_or_version_is_refused() {
    const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("hub.redb");
    drop(redb::Database::create(&path).unwrap());
    let opened = RedbStore::open(directory.path(), epoch())
        .unwrap_err()
        .to_string();
    assert!(opened.ends_with("another program made it"), "{opened}");

    let database = redb::Database::create(&path).unwrap();
    let writing = database.begin_write().unwrap();
    let mut meta = writing.open_table(META).unwrap();
    meta.insert("format", &b"exec-hub/1"[..]).unwrap();
    drop(meta);
    writing.commit().unwrap();
    drop(database);
    let opened = RedbStore::open(directory.path(), epoch())
        .unwrap_err()
        .to_string();
    assert!(opened.contains("exec-hub/1"), "{opened}");
}
