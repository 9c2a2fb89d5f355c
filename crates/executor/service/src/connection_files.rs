//! What one connection holds of files: those it has open, and those it watches. All of it ends with
//! the connection.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use exec_env::filesystem::OpenFile;
use exec_wire::{
    error::{ErrorCode, RpcError},
    id::{HandleId, WatchId},
    limits,
};
use tokio::{sync::Semaphore, task::AbortHandle};

/// The open files and the watches of one connection.
#[derive(Debug)]
pub(crate) struct ConnectionFiles {
    state: Mutex<State>,
    /// Room for lists, until they are sent.
    pub(crate) list_permits: Semaphore,
}

impl Default for ConnectionFiles {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            list_permits: Semaphore::new(limits::MAX_LISTS),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    /// `None`: it is being opened.
    handles: BTreeMap<HandleId, Option<Arc<OpenHandle>>>,
    /// `None`: it is being set up.
    watches: BTreeMap<WatchId, Option<AbortOnDrop>>,
    missing: Option<AbortOnDrop>,
    last_missing: u64,
}

/// An open file. Requests hold it by themselves, so that closing it does not concern them.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(crate) file: Arc<dyn OpenFile>,
    /// The host cannot read it: it is closed for those who hold it, too.
    failed: AtomicBool,
}

impl ConnectionFiles {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a name for a file that is about to be opened.
    pub(crate) fn admit_handle(
        self: &Arc<Self>,
        id: &HandleId,
    ) -> Result<HandleReservation, RpcError> {
        check_handle(id)?;
        let most = limits::MAX_FILE_HANDLES;
        let handles = &mut self.lock().handles;
        if handles.contains_key(id) {
            let text = format!("file handle `{id}` already exists");
            return Err(RpcError::invalid_request(text));
        }
        if handles.len() >= most {
            let text = format!("at most {most} file handles may be open per connection");
            return Err(RpcError::invalid_request(text));
        }
        handles.insert(id.clone(), None);
        Ok(HandleReservation {
            files: Arc::clone(self),
            id: Some(id.clone()),
        })
    }

    /// Finds an open file: the one that a request holds, or the one that has the name now.
    pub(crate) fn find(
        &self,
        id: &HandleId,
        pinned: Option<Arc<OpenHandle>>,
    ) -> Result<Arc<OpenHandle>, RpcError> {
        pinned
            .or_else(|| self.handle(id))
            .filter(|handle| !handle.failed.load(Ordering::Relaxed))
            .ok_or_else(|| unknown_handle(id))
    }

    /// Returns the open file that has the name now.
    pub(crate) fn handle(&self, id: &HandleId) -> Option<Arc<OpenHandle>> {
        self.lock().handles.get(id).cloned().flatten()
    }

    /// Closes a file that the host cannot read, also for those who hold it.
    pub(crate) fn fail(&self, id: &HandleId, handle: &Arc<OpenHandle>) {
        handle.failed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        let named = state.handles.get(id).and_then(Option::as_ref);
        if named.is_some_and(|named| Arc::ptr_eq(named, handle)) {
            state.handles.remove(id);
        }
    }

    /// Closes a file, if it is open.
    pub(crate) fn close(&self, id: &HandleId) {
        let mut state = self.lock();
        // One that is being opened keeps its place.
        if state.handles.get(id).is_some_and(Option::is_some) {
            state.handles.remove(id);
        }
    }

    /// Takes a name for a watch that is about to be set up.
    pub(crate) fn admit_watch(
        self: &Arc<Self>,
        id: &WatchId,
    ) -> Result<WatchReservation, RpcError> {
        let watches = &mut self.lock().watches;
        // What was watched may be gone: its name is free again.
        let runs = |task: &AbortOnDrop| !task.0.is_finished();
        watches.retain(|_, task| task.as_ref().is_none_or(runs));
        if watches.contains_key(id) {
            return Err(RpcError::invalid_request(format!(
                "watch `{id}` already exists"
            )));
        }
        if watches.len() >= limits::MAX_WATCHES {
            let most = limits::MAX_WATCHES;
            let text = format!("at most {most} watches may be set per connection");
            return Err(RpcError::invalid_request(text));
        }
        watches.insert(id.clone(), None);
        Ok(WatchReservation {
            files: Arc::clone(self),
            id: Some(id.clone()),
        })
    }

    /// Ends a watch, if there is one.
    pub(crate) fn unwatch(&self, id: &WatchId) {
        self.lock().watches.remove(id);
    }

    /// Ends the watch for missing paths, if `id` may name the next. One that is stale changes
    /// nothing.
    pub(crate) fn admit_missing(&self, id: u64) -> bool {
        let mut state = self.lock();
        let fresh = id > state.last_missing;
        if fresh {
            state.last_missing = id;
            state.missing = None;
        }
        fresh
    }

    /// Keeps the watch for missing paths.
    pub(crate) fn set_missing_watch(&self, task: AbortHandle) {
        self.lock().missing = Some(AbortOnDrop(task));
    }
}

/// Refuses a name that no open file can have.
pub(crate) fn check_handle(id: &HandleId) -> Result<(), RpcError> {
    let most = limits::MAX_HANDLE_ID_BYTES;
    if id.as_str().len() > most {
        let text = format!("file handle ID must not exceed {most} bytes");
        return Err(RpcError::invalid_request(text));
    }
    Ok(())
}

fn unknown_handle(id: &HandleId) -> RpcError {
    RpcError::new(ErrorCode::NOT_FOUND, format!("unknown file handle `{id}`"))
}

/// A name for a file that is being opened. It is free again if that comes to nothing.
#[derive(Debug)]
pub(crate) struct HandleReservation {
    files: Arc<ConnectionFiles>,
    id: Option<HandleId>,
}

impl HandleReservation {
    pub(crate) fn finish(mut self, file: Arc<dyn OpenFile>) {
        if let Some(id) = self.id.take() {
            let handle = OpenHandle {
                file,
                failed: AtomicBool::new(false),
            };
            self.files.lock().handles.insert(id, Some(Arc::new(handle)));
        }
    }
}

impl Drop for HandleReservation {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.files.lock().handles.remove(id);
        }
    }
}

/// A name for a watch that is being set up. It is free again if that comes to nothing.
#[derive(Debug)]
pub(crate) struct WatchReservation {
    files: Arc<ConnectionFiles>,
    id: Option<WatchId>,
}

impl WatchReservation {
    pub(crate) fn finish(mut self, task: AbortHandle) {
        if let Some(id) = self.id.take() {
            self.files
                .lock()
                .watches
                .insert(id, Some(AbortOnDrop(task)));
        }
    }
}

impl Drop for WatchReservation {
    fn drop(&mut self) {
        if let Some(id) = &self.id {
            self.files.lock().watches.remove(id);
        }
    }
}

/// A task that ends with its value.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
