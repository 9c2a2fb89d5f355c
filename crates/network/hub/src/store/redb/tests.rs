//! Tests of a store on a failing disk.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use exec_relay::identity::NoiseIdentity;
use redb::{StorageBackend, backends::InMemoryBackend};

use super::{RedbStore, database, *};
use crate::store::{Store as _, StoreError, Timestamp};

/// An in-memory disk that can be made to fail.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    content: Arc<InMemoryBackend>,
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl Disk {
    /// Makes all further writes fail.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        assert!(
            !self.panics.load(Ordering::Relaxed),
            "panic requested by the test"
        );
        if self.fails.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.content.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.content.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.check()?;
        self.content.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.check()?;
        self.content.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.check()?;
        self.content.write(offset, data)
    }
}

/// Creates a store on a failing disk.
pub(crate) fn on_disk() -> (RedbStore, Disk) {
    let disk = Disk {
        content: Arc::new(InMemoryBackend::new()),
        fails: Arc::default(),
        panics: Arc::default(),
    };
    let database = redb::Builder::new().create_with_backend(disk.clone());
    let database = database.unwrap();
    let Ok(key) = database::identify(&database, true) else {
        panic!("failed to create the store");
    };
    let store = RedbStore::start(database, key, Timestamp::now());
    (store.unwrap(), disk)
}

/// Makes the writer thread panic and waits until it is gone.
pub(crate) async fn lose_writer(store: &RedbStore, disk: &Disk) {
    disk.panics.store(true, Ordering::Relaxed);
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    assert!(store.claim(&environment, &alice).await.is_err());
    store.jobs.as_ref().unwrap().closed().await;
}

#[tokio::test]
async fn failed_commit_makes_the_check_fail() {
    let (store, disk) = on_disk();
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    store.claim(&environment, &alice).await.unwrap();
    store.check().await.unwrap();
    disk.fail();
    let other = "other".parse().unwrap();
    assert!(store.claim(&other, &alice).await.is_err());
    assert!(store.check().await.is_err());
}

#[tokio::test]
async fn lost_writer_makes_the_check_fail() {
    let (store, disk) = on_disk();
    lose_writer(&store, &disk).await;
    let checked = store.check().await;
    assert!(matches!(checked, Err(StoreError::Closed)), "{checked:?}");
}

#[test]
fn expired_and_used_authorizations_are_released() {
    let (t0, environment) = (Timestamp::from_seconds(1000), "env".parse().unwrap());
    let mut live = LiveState::new(t0);
    let authorization = Authorization {
        environment,
        registration: "reg".parse().unwrap(),
        harness_key: NoiseIdentity::generate().public_key().clone(),
        principal: "alice".parse().unwrap(),
        expires_at: t0.plus(Duration::from_secs(60)),
    };
    let hash = |n: usize| TokenHash::of(&authorization.environment, &n.to_string());
    for n in 0..100 {
        live.authorize(hash(n), authorization.clone(), t0).unwrap();
    }
    assert!(live.redeem(hash(0), t0).is_some());
    assert!(live.redeem(hash(0), t0).is_none());
    assert!(live.redeem(hash(1), authorization.expires_at).is_none());
    let later = authorization.expires_at;
    live.authorize(hash(usize::MAX), authorization.clone(), later)
        .unwrap();
    assert_eq!(live.authorizations.len(), 1);
}

#[test]
fn only_many_principals_can_exhaust_all_authorizations() {
    let now = Timestamp::from_seconds(1000);
    let mut live = LiveState::new(now);
    let harness_key = NoiseIdentity::generate().public_key().clone();
    let mut refused = None;
    for n in 0..=MAX_AUTHORIZATIONS {
        let authorization = Authorization {
            environment: "env".parse().unwrap(),
            registration: "reg".parse().unwrap(),
            harness_key: harness_key.clone(),
            principal: format!("p{}", n / 1024).parse().unwrap(),
            expires_at: now.plus(Duration::from_secs(60)),
        };
        let token = TokenHash::of(&authorization.environment, &n.to_string());
        refused = live
            .authorize(token, authorization, now)
            .err()
            .map(|error| (n, error));
    }
    assert!(matches!(
        refused,
        Some((MAX_AUTHORIZATIONS, AuthorizeError::Full))
    ));
}
