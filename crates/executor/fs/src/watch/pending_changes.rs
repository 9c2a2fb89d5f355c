//! Changes that wait to be reported: each path once, with its combined change. Also the channel
//! that passes them to the client's stream.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use exec_env::filesystem::ChangeBatch;
use exec_wire::{
    fs::{PathChange, PathChangeKind},
    limits,
    path_uri::PathUri,
};
use futures_util::Stream;

use crate::inotify::WatchSubscription;

/// Pending changes, at most [`limits::MAX_GATHERED_CHANGES`] in [`limits::MAX_GATHERED_BYTES`]. Any
/// further change sets the overflow flag.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    kinds: BTreeMap<PathBuf, ObservedChange>,
    /// Total size of the paths.
    bytes: usize,
    overflow: bool,
}

impl PendingChanges {
    /// Adds a change that is later than all others.
    ///
    /// A file that is removed and created again is modified. A directory is created, because its
    /// old contents are gone. An entry that was created and removed is reported as removed, because
    /// the client may have seen it. A target that a rename replaced is renamed, because the client
    /// has to check below it.
    pub(super) fn add(&mut self, path: PathBuf, kind: ObservedChange) {
        let bytes = path.as_os_str().len();
        let full = self.kinds.len() >= limits::MAX_GATHERED_CHANGES
            || self.bytes + bytes > limits::MAX_GATHERED_BYTES;
        match self.kinds.entry(path) {
            Entry::Occupied(mut entry) => {
                let known = entry.get_mut();
                *known = known.then(kind);
            }
            Entry::Vacant(_) if full => self.overflow = true,
            Entry::Vacant(entry) => {
                entry.insert(kind);
                self.bytes += bytes;
            }
        }
    }

    /// Turns a removal into a rename.
    pub(super) fn mark_moved(&mut self, path: &Path) {
        if let Some(kind) = self.kinds.get_mut(path)
            && matches!(
                kind,
                ObservedChange::Removed
                    | ObservedChange::DirectoryRemoved
                    | ObservedChange::Vanished
            )
        {
            *kind = ObservedChange::MovedAway;
        }
    }

    /// Records that changes were lost.
    pub(super) fn set_overflow(&mut self) {
        self.overflow = true;
    }

    /// Adds all changes of `later`.
    pub(super) fn append(&mut self, later: Self) {
        self.overflow |= later.overflow;
        if self.kinds.is_empty() {
            (self.kinds, self.bytes) = (later.kinds, later.bytes);
            return;
        }
        for (path, kind) in later.kinds {
            self.add(path, kind);
        }
    }

    /// Takes all changes.
    pub(super) fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// Returns whether there is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        self.kinds.is_empty() && !self.overflow
    }

    /// Returns the changes to report, parents before children.
    pub(super) fn into_changes(self) -> ChangeBatch {
        let changes = self.kinds.into_iter().filter_map(|(path, kind)| {
            // Every absolute path has a URI.
            let path = PathUri::from_native(&path).ok()?;
            let kind = kind.reported();
            Some(PathChange { path, kind })
        });
        ChangeBatch {
            changes: changes.collect(),
            overflow: self.overflow,
        }
    }
}

/// The combined change of a path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ObservedChange {
    /// It did not exist, and now does.
    Created,
    /// It existed, and still does.
    Modified,
    /// A file existed, and no longer does.
    Removed,
    /// A directory existed, and no longer does.
    DirectoryRemoved,
    /// An entry was renamed to this path. Whether it replaced another is unknown.
    MovedHere,
    /// It existed, and now has another name.
    MovedAway,
    /// It existed only in between.
    Vanished,
}

impl ObservedChange {
    /// Combines this change with a later one.
    fn then(self, later: Self) -> Self {
        match (self, later) {
            (Self::Created, Self::Modified) => Self::Created,
            (Self::Created, Self::Removed | Self::DirectoryRemoved) => Self::Vanished,
            (Self::Vanished, Self::Modified | Self::Removed | Self::DirectoryRemoved) => {
                Self::Vanished
            }
            (Self::Modified | Self::Removed, Self::Created) => Self::Modified,
            (Self::Removed | Self::DirectoryRemoved | Self::MovedAway, Self::Modified) => self,
            (Self::MovedAway, Self::Created) => Self::MovedHere,
            (Self::MovedHere, Self::Created | Self::Modified) => Self::MovedHere,
            (
                Self::Created
                | Self::Modified
                | Self::Removed
                | Self::DirectoryRemoved
                | Self::MovedHere
                | Self::MovedAway
                | Self::Vanished,
                later,
            ) => later,
        }
    }

    fn reported(self) -> PathChangeKind {
        match self {
            Self::Created => PathChangeKind::Created,
            Self::Modified => PathChangeKind::Modified,
            Self::Removed | Self::DirectoryRemoved | Self::Vanished => PathChangeKind::Removed,
            Self::MovedHere | Self::MovedAway => PathChangeKind::Renamed,
        }
    }
}

/// Creates a channel for changes.
pub(super) fn change_channel() -> (ChangeSender, ChangeReceiver) {
    let shared = Arc::<Mutex<ChangeChannel>>::default();
    (ChangeSender(Arc::clone(&shared)), ChangeReceiver(shared))
}

/// The sending end. Dropping it ends the stream.
pub(super) struct ChangeSender(Arc<Mutex<ChangeChannel>>);

impl ChangeSender {
    /// Adds pending changes. Never blocks.
    pub(super) fn send(&self, changes: PendingChanges) {
        if !changes.is_empty() {
            self.update(|shared| shared.ready.append(changes));
        }
    }

    fn update(&self, update: impl FnOnce(&mut ChangeChannel)) {
        let waker = {
            let mut shared = lock(&self.0);
            update(&mut shared);
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for ChangeSender {
    fn drop(&mut self) {
        self.update(|shared| shared.ended = true);
    }
}

/// The receiving end.
pub(super) struct ChangeReceiver(Arc<Mutex<ChangeChannel>>);

impl ChangeReceiver {
    /// Returns the changes as a stream that ends the watch when dropped.
    pub(super) fn until_dropped(self, subscription: WatchSubscription) -> ChangeStream {
        ChangeStream {
            batches: self,
            _subscription: subscription,
        }
    }

    /// Takes the pending changes.
    #[cfg(test)]
    pub(super) fn take(&self) -> Option<ChangeBatch> {
        let pending = lock(&self.0).ready.take();
        (!pending.is_empty()).then(|| pending.into_changes())
    }
}

/// The change stream of one watch.
pub(super) struct ChangeStream {
    batches: ChangeReceiver,
    _subscription: WatchSubscription,
}

impl Stream for ChangeStream {
    type Item = ChangeBatch;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ChangeBatch>> {
        let pending = {
            let mut shared = lock(&self.batches.0);
            if shared.ready.is_empty() {
                if shared.ended {
                    return Poll::Ready(None);
                }
                shared.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            shared.ready.take()
        };
        Poll::Ready(Some(pending.into_changes()))
    }
}

#[derive(Default)]
struct ChangeChannel {
    ready: PendingChanges,
    ended: bool,
    waker: Option<Waker>,
}

fn lock(shared: &Mutex<ChangeChannel>) -> MutexGuard<'_, ChangeChannel> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(kinds: &[ObservedChange]) -> PathChangeKind {
        let mut changes = PendingChanges::default();
        for &kind in kinds {
            changes.add(PathBuf::from("/a"), kind);
        }
        let reported = changes.into_changes();
        assert!(!reported.overflow);
        reported.changes[0].kind
    }

    #[test]
    fn total_path_size_is_bounded() {
        let mut changes = PendingChanges::default();
        let long = "x".repeat(4000);
        let most = limits::MAX_GATHERED_BYTES / 4000;
        for number in 0..most + 10 {
            changes.add(
                PathBuf::from(format!("/{number:04}{long}")),
                ObservedChange::Created,
            );
        }
        let reported = changes.into_changes();
        assert!(reported.overflow);
        assert!((most - 10..=most).contains(&reported.changes.len()));
    }

    #[test]
    fn changes_of_one_path_are_combined() {
        use ObservedChange::{Created, DirectoryRemoved, Modified, MovedAway, MovedHere, Removed};
        use PathChangeKind as Kind;
        for (kinds, expected) in [
            (&[Created, Modified][..], Kind::Created),
            (&[Created, Removed], Kind::Removed),
            (&[Created, Removed, Created], Kind::Created),
            (&[Created, MovedHere], Kind::Renamed),
            (&[Modified, Removed], Kind::Removed),
            (&[Removed, Created], Kind::Modified),
            (&[Removed, Created, Removed], Kind::Removed),
            (&[Removed, MovedHere], Kind::Renamed),
            (&[DirectoryRemoved, Created], Kind::Created),
            (
                &[DirectoryRemoved, Created, DirectoryRemoved],
                Kind::Removed,
            ),
            (&[MovedHere, Modified], Kind::Renamed),
            (&[MovedHere, Removed], Kind::Removed),
            (&[MovedAway, Created], Kind::Renamed),
        ] {
            assert_eq!(reported(kinds), expected, "{kinds:?}");
        }
    }

    #[test]
    fn removed_path_that_reappears_is_reported_as_renamed() {
        let mut changes = PendingChanges::default();
        changes.add(PathBuf::from("/a"), ObservedChange::Removed);
        changes.mark_moved(Path::new("/a"));
        changes.mark_moved(Path::new("/b"));
        let reported = changes.into_changes().changes;
        assert_eq!(reported.len(), 1);
        assert_eq!(reported[0].kind, PathChangeKind::Renamed);
    }

    #[test]
    fn one_change_too_many_sets_overflow() {
        let mut changes = PendingChanges::default();
        for number in 0..limits::MAX_GATHERED_CHANGES {
            changes.add(PathBuf::from(format!("/{number}")), ObservedChange::Created);
        }
        changes.add(PathBuf::from("/0"), ObservedChange::Modified);
        assert!(!changes.overflow);
        changes.add(PathBuf::from("/more"), ObservedChange::Created);
        let mut all = PendingChanges::default();
        all.add(PathBuf::from("/0"), ObservedChange::Removed);
        all.append(changes);
        let reported = all.into_changes();
        assert!(reported.overflow);
        assert_eq!(reported.changes.len(), limits::MAX_GATHERED_CHANGES);
    }
}
