//! Watches in an fs worker: reports changes to the server.

use std::{
    os::fd::OwnedFd,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use exec_env::filesystem::{MissingPathsRequest, WatchDepth, WatchPathRequest};
use exec_wire::path_uri::PathUri;
use futures_util::StreamExt;

use super::{
    worker_frame::FrameStatus,
    worker_loop::send,
    worker_request::{EncodedChangeBatch, status_of},
};

/// Watches a path and reports changes until the watch ends or the server is gone.
pub(super) fn watch(socket: &OwnedFd, path: PathUri, tree: bool) -> Option<()> {
    let depth = if tree {
        WatchDepth::Tree
    } else {
        WatchDepth::Entries
    };
    let watcher = exec_fs::watch(&WatchPathRequest {
        path,
        depth,
        sandbox: None,
    });
    let mut watcher = match watcher {
        Ok(watcher) => watcher,
        Err(error) => {
            let (status, text) = status_of(error);
            return send(socket, status, text.as_bytes(), &[], &[]);
        }
    };
    send_json(socket, &watcher.path)?;
    while let Some(changes) = block_on(watcher.changes.next()) {
        send_json(socket, &EncodedChangeBatch::from(changes))?;
    }
    send(socket, FrameStatus::Ended, &[], &[], &[])
}

/// Watches for missing paths and reports once.
pub(super) fn watch_missing(
    socket: &OwnedFd,
    missing: Vec<PathUri>,
    present: Option<PathUri>,
) -> Option<()> {
    let started = exec_fs::watch_missing(&MissingPathsRequest {
        missing,
        present,
        sandbox: None,
    });
    match started {
        Ok(Some(change)) => {
            send_json(socket, &true)?;
            block_on(change);
            send(socket, FrameStatus::Ended, &[], &[], &[])
        }
        Ok(None) => send_json(socket, &false),
        Err(error) => {
            let (status, text) = status_of(error);
            send(socket, status, text.as_bytes(), &[], &[])
        }
    }
}

fn send_json(socket: &OwnedFd, value: &impl serde::Serialize) -> Option<()> {
    let text = serde_json::to_vec(value).ok()?;
    send(socket, FrameStatus::Success, &text, &[], &[])
}

/// Blocks this thread until the future completes. The watch thread wakes it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

struct ThreadWaker(Thread);

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
