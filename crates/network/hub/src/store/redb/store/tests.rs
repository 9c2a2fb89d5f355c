//! A store whose disk fails.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{StorageBackend, backends::InMemoryBackend};

use super::{RedbStore, open};
use crate::store::{Store as _, StoreError, Timestamp};

/// A disk that can be made to fail, in memory.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    content: Arc<InMemoryBackend>,
    fails: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl Disk {
    /// From now on nothing can be written.
    pub(crate) fn fail(&self) {
        self.fails.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told to");
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

/// A store on such a disk.
pub(crate) fn on_disk() -> (RedbStore, Disk) {
    let disk = Disk {
        content: Arc::new(InMemoryBackend::new()),
        fails: Arc::default(),
        panics: Arc::default(),
    };
    let database = redb::Builder::new().create_with_backend(disk.clone());
    let database = database.unwrap();
    let Ok(key) = open::identify(&database, true) else {
        panic!("the store was not made");
    };
    let store = RedbStore::start(database, key, Timestamp::now());
    (store.unwrap(), disk)
}

/// Has the writing thread of a store panic, and waits until it is gone.
pub(crate) async fn lose_writer(store: &RedbStore, disk: &Disk) {
    disk.panics.store(true, Ordering::Relaxed);
    let (environment, alice) = ("env".parse().unwrap(), "alice".parse().unwrap());
    assert!(store.claim(&environment, &alice).await.is_err());
    store.jobs.as_ref().unwrap().closed().await;
}

#[tokio::test]
async fn a_store_whose_commit_failed_is_not_well() {
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
async fn a_store_whose_writer_is_gone_is_not_well() {
    let (store, disk) = on_disk();
    lose_writer(&store, &disk).await;
    let checked = store.check().await;
    assert!(matches!(checked, Err(StoreError::Closed)), "{checked:?}");
}
