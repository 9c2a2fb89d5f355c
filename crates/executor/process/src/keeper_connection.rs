//! The connection of a server to its keeper, and what the keeper must hold.
//!
//! A keeper that died is replaced, and gets all descriptors again.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use exec_journal::RecordId;
use exec_spawn::keeper::{
    DurableSpawner, HeldRecord, KeeperClient, KeeperError, KeeperHandle, KeeperSlot, SlotDescriptor,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::spawn_blocking,
    time::sleep,
};

use crate::stdio::register;

/// How long to wait after a keeper could not be replaced.
const REPLACE_RETRY: Duration = Duration::from_secs(1);

/// Connection to the keeper.
#[derive(Debug)]
pub(crate) struct KeeperConnection {
    socket: PathBuf,
    program: PathBuf,
    state: Mutex<ConnectionState>,
    /// Whether a task waits for the end of the keeper.
    is_watched: AtomicBool,
}

#[derive(Debug, Default)]
struct ConnectionState {
    client: Option<Arc<KeeperClient>>,
    /// Duplicates of all descriptors that the keeper holds.
    held: BTreeMap<RecordId, BTreeMap<KeeperSlot, OwnedFd>>,
}

impl KeeperConnection {
    pub(crate) fn new(socket: PathBuf, program: &Path) -> Self {
        Self {
            socket,
            program: program.to_owned(),
            state: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }
    }

    /// Has the keeper hold the descriptors of a process.
    pub(crate) fn hold(
        &self,
        id: RecordId,
        descriptors: Vec<(KeeperSlot, OwnedFd)>,
    ) -> Result<(), KeeperError> {
        let mut state = self.lock();
        let descriptors: BTreeMap<_, _> = descriptors.into_iter().collect();
        let client = self.client(&mut state)?;
        client.hold(id.as_bytes(), &borrowed(&descriptors))?;
        state.held.insert(id, descriptors);
        Ok(())
    }

    /// Notes descriptors that the keeper holds already.
    pub(crate) fn remember(
        &self,
        id: RecordId,
        descriptors: &BTreeMap<KeeperSlot, OwnedFd>,
    ) -> io::Result<()> {
        let duplicates = descriptors
            .iter()
            .map(|(slot, fd)| Ok((*slot, fd.try_clone()?)));
        let duplicates = duplicates.collect::<io::Result<_>>()?;
        self.lock().held.insert(id, duplicates);
        Ok(())
    }

    pub(crate) fn holds(&self, id: RecordId) -> bool {
        self.lock().held.contains_key(&id)
    }

    /// Closes one descriptor of a process.
    pub(crate) fn release(&self, id: RecordId, slot: KeeperSlot) {
        let mut state = self.lock();
        if let Some(held) = state.held.get_mut(&id) {
            held.remove(&slot);
        }
        if let Some(client) = &state.client
            && let Err(error) = client.release(id.as_bytes(), slot)
        {
            tracing::warn!(%error, ?slot, "keeper did not release a descriptor");
        }
    }

    /// Closes all descriptors of a process.
    pub(crate) fn drop_record(&self, id: RecordId) {
        let mut state = self.lock();
        state.held.remove(&id);
        if let Some(client) = &state.client
            && let Err(error) = client.drop_record(id.as_bytes())
        {
            tracing::warn!(%error, "keeper did not drop a record");
        }
    }

    /// Lists what a keeper holds, if one runs.
    pub(crate) fn list(self: &Arc<Self>) -> Result<Vec<HeldRecord>, KeeperError> {
        let mut state = self.lock();
        let Some(client) = KeeperClient::connect(&self.socket)? else {
            return Ok(Vec::new());
        };
        let held = client.list()?;
        state.client = Some(Arc::new(client));
        Ok(held)
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        let state = self.lock();
        let client = state.client.as_ref().filter(|client| !client.has_exited());
        client.map(|client| client.pid())
    }

    /// Returns the client of a live keeper. Starts one if necessary, and hands everything over
    /// again.
    fn client(&self, state: &mut ConnectionState) -> Result<Arc<KeeperClient>, KeeperError> {
        if let Some(client) = state.client.as_ref().filter(|client| !client.has_exited()) {
            return Ok(Arc::clone(client));
        }
        let client = Arc::new(KeeperClient::connect_or_start(&self.socket, &self.program)?);
        for (id, descriptors) in &state.held {
            client.hold(id.as_bytes(), &borrowed(descriptors))?;
        }
        state.client = Some(Arc::clone(&client));
        Ok(client)
    }

    /// Replaces the keeper whenever it dies, from now on.
    pub(crate) fn ensure_watched(self: &Arc<Self>) {
        if !self.is_watched.swap(true, Relaxed) {
            tokio::spawn(Self::watch(Arc::downgrade(self)));
        }
    }

    /// Replaces the keeper whenever it dies, until the connection is dropped.
    async fn watch(connection: Weak<Self>) {
        loop {
            let descriptor = connection.upgrade().and_then(|it| it.exit_descriptor());
            let Some(descriptor) = descriptor else {
                if let Some(connection) = connection.upgrade() {
                    connection.is_watched.store(false, Relaxed);
                }
                return;
            };
            // A pidfd becomes readable when its process exits.
            drop(descriptor.readable().await);
            let Some(connection) = connection.upgrade() else {
                return;
            };
            tracing::warn!("the keeper died; starting another one");
            let replaced = spawn_blocking(move || {
                let mut state = connection.lock();
                connection.client(&mut state).map(drop)
            });
            if let Ok(Err(error)) = replaced.await {
                tracing::error!(%error, "failed to replace the keeper; trying again");
                sleep(REPLACE_RETRY).await;
            }
        }
    }

    fn exit_descriptor(&self) -> Option<AsyncFd<OwnedFd>> {
        let state = self.lock();
        let descriptor = state.client.as_ref()?.exit_descriptor();
        let duplicate = descriptor.try_clone_to_owned().ok()?;
        register(duplicate, Interest::READABLE).ok()
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeeperHandle for KeeperConnection {
    fn start_spawner(&self, program: &Path) -> Result<DurableSpawner, KeeperError> {
        let client = self.client(&mut self.lock())?;
        client.start_spawner(program)
    }
}

fn borrowed(descriptors: &BTreeMap<KeeperSlot, OwnedFd>) -> Vec<SlotDescriptor<'_>> {
    let borrowed = descriptors.iter().map(|(slot, fd)| (*slot, fd.as_fd()));
    borrowed.collect()
}
