//! Watches under a policy, as the hand tells of them.

use std::{
    os::fd::OwnedFd,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use exec_env::filesystem::{MissingPaths, WatchDepth, WatchPath};
use exec_wire::path_uri::PathUri;
use futures_util::StreamExt;

use super::{
    worker_frame::Class,
    worker_loop::send,
    worker_request::{ToldChanges, class_of},
};

/// Watches, and tells until there is nothing more or nobody listens.
pub(super) fn watch(socket: &OwnedFd, path: PathUri, tree: bool) -> Option<()> {
    let depth = if tree {
        WatchDepth::Tree
    } else {
        WatchDepth::Entries
    };
    let watcher = exec_fs::watch(&WatchPath {
        path,
        depth,
        sandbox: None,
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => {
            let (class, text) = class_of(error);
            return send(socket, class, text.as_bytes(), &[], &[]);
        }
    };
    tell(socket, &watcher.path)?;
    while let Some(changes) = wait(watcher.changes.next()) {
        tell(socket, &ToldChanges::from(changes))?;
    }
    send(socket, Class::Ended, &[], &[], &[])
}

/// Watches for missing paths, and tells once.
pub(super) fn watch_missing(
    socket: &OwnedFd,
    missing: Vec<PathUri>,
    present: Option<PathUri>,
) -> Option<()> {
    let begun = exec_fs::watch_missing(&MissingPaths {
        missing,
        present,
        sandbox: None,
    });
    match begun {
        Ok(Some(change)) => {
            tell(socket, &true)?;
            wait(change);
            send(socket, Class::Ended, &[], &[], &[])
        }
        Ok(None) => tell(socket, &false),
        Err(error) => {
            let (class, text) = class_of(error);
            send(socket, class, text.as_bytes(), &[], &[])
        }
    }
}

fn tell(socket: &OwnedFd, what: &impl serde::Serialize) -> Option<()> {
    let text = serde_json::to_vec(what).ok()?;
    send(socket, Class::Good, &text, &[], &[])
}

/// Blocks this thread until a future is done. It is woken by the thread that hears of changes.
fn wait<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
