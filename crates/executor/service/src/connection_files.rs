//! Open file handles and watches of one connection. They end with the connection.

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
    /// Limits the large listings that are in memory at once.
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
    /// `None` while the file is being opened.
    handles: BTreeMap<HandleId, Option<Arc<OpenHandle>>>,
    /// `None` while the watch is being set up.
    watches: BTreeMap<WatchId, Option<AbortOnDrop>>,
    missing: Option<AbortOnDrop>,
    last_missing: u64,
}

/// An open file. Requests in flight keep their own reference, so `fs/close` does not affect them.
#[derive(Debug)]
pub(crate) struct OpenHandle {
    pub(crate) file: Arc<dyn OpenFile>,
    /// Set after a read error: the handle is then closed for all requests.
    failed: AtomicBool,
}

impl ConnectionFiles {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves a handle id for a file that is about to be opened.
    pub(crate) fn admit_handle(
        self: &Arc<Self>,
        id: &HandleId,
    ) -> Result<HandleReservation, RpcError> {
        check_handle(id)?;
        let max = limits::MAX_FILE_HANDLES;
        let handles = &mut self.lock().handles;
        if handles.contains_key(id) {
            let text = format!("file handle `{id}` already exists");
            return Err(RpcError::invalid_request(text));
        }
        if handles.len() >= max {
            let text = format!("at most {max} file handles may be open per connection");
            return Err(RpcError::invalid_request(text));
        }
        handles.insert(id.clone(), None);
        Ok(HandleReservation {
            files: Arc::clone(self),
            id: Some(id.clone()),
        })
    }

    /// Returns the pinned handle of a request, or the handle that has the id now.
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

    /// Returns the handle that has the id now.
    pub(crate) fn handle(&self, id: &HandleId) -> Option<Arc<OpenHandle>> {
        self.lock().handles.get(id).cloned().flatten()
    }

    /// Closes a handle after a read error, also for requests that have pinned it.
    pub(crate) fn fail(&self, id: &HandleId, handle: &Arc<OpenHandle>) {
        handle.failed.store(true, Ordering::Relaxed);
        let mut state = self.lock();
        let named = state.handles.get(id).and_then(Option::as_ref);
        if named.is_some_and(|named| Arc::ptr_eq(named, handle)) {
            state.handles.remove(id);
        }
    }

    /// Closes a handle, if it is open.
    pub(crate) fn close(&self, id: &HandleId) {
        let mut state = self.lock();
        // Keep the reservation of a file that is being opened.
        if state.handles.get(id).is_some_and(Option::is_some) {
            state.handles.remove(id);
        }
    }

    /// Reserves an id for a watch that is about to be set up.
    pub(crate) fn admit_watch(
        self: &Arc<Self>,
        id: &WatchId,
    ) -> Result<WatchReservation, RpcError> {
        let watches = &mut self.lock().watches;
        // The watched path may be gone. Free the ids of such watches.
        let runs = |task: &AbortOnDrop| !task.0.is_finished();
        watches.retain(|_, task| task.as_ref().is_none_or(runs));
        if watches.contains_key(id) {
            return Err(RpcError::invalid_request(format!(
                "watch `{id}` already exists"
            )));
        }
        if watches.len() >= limits::MAX_WATCHES {
            let max = limits::MAX_WATCHES;
            let text = format!("at most {max} watches are allowed per connection");
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

    /// Ends the watch for missing paths if `id` is newer than the last one. Returns `false` for a
    /// stale id.
    pub(crate) fn admit_missing(&self, id: u64) -> bool {
        let mut state = self.lock();
        let fresh = id > state.last_missing;
        if fresh {
            state.last_missing = id;
            state.missing = None;
        }
        fresh
    }

    /// Stores the task of the watch for missing paths.
    pub(crate) fn set_missing_watch(&self, task: AbortHandle) {
        self.lock().missing = Some(AbortOnDrop(task));
    }
}

/// Rejects a handle id that is too long.
pub(crate) fn check_handle(id: &HandleId) -> Result<(), RpcError> {
    let max = limits::MAX_HANDLE_ID_BYTES;
    if id.as_str().len() > max {
        let text = format!("file handle ID must not exceed {max} bytes");
        return Err(RpcError::invalid_request(text));
    }
    Ok(())
}

fn unknown_handle(id: &HandleId) -> RpcError {
    RpcError::new(ErrorCode::NOT_FOUND, format!("unknown file handle `{id}`"))
}

/// A reserved handle id. Dropping it releases the id.
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

/// A reserved watch id. Dropping it releases the id.
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

/// Aborts its task when dropped.
#[derive(Debug)]
pub(crate) struct AbortOnDrop(pub(crate) AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
