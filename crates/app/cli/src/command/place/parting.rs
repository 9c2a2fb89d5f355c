//! Leaving servers with last words.
//!
//! Behind a relay a client that goes without a word is taken for one that may come back: the executor
//! keeps its stream for a while, one of those that it has. Servers that are connected to directly see
//! the connection close, so nobody waits for those.

use std::{cell::RefCell, time::Duration};

use exec_client::client::ExecServerClient;
use futures_util::future::{BoxFuture, FutureExt, join_all};
use tokio::time::timeout;

/// How long last words may take. The client gives its peer a second; the rest is for handles that are
/// still held somewhere.
const PATIENCE: Duration = Duration::from_millis(1200);

tokio::task_local! {
    /// Connections that were opened by what runs.
    static OPENED: RefCell<Vec<BoxFuture<'static, ()>>>;
}

/// Does something, and then waits until the connections that it has asked for have ended. It has let go
/// of them by then.
pub(crate) async fn parting<T>(work: impl Future<Output = T>) -> T {
    OPENED
        .scope(RefCell::default(), async {
            let done = work.await;
            let opened = OPENED.with(RefCell::take);
            if !opened.is_empty() {
                // Whoever is not heard in time is left all the same.
                drop(timeout(PATIENCE, join_all(opened)).await);
            }
            done
        })
        .await
}

/// Asks for last words on a connection. Nobody waits for them outside of [`parting`].
pub(super) fn part_from(client: &ExecServerClient) {
    let ended = client.ended().boxed();
    let _outside = OPENED.try_with(|opened| opened.borrow_mut().push(ended));
}
