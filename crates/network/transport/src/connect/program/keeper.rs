//! The task that keeps a program: logs what it says, ends it, and tells how it ended.

use std::{convert::Infallible, future::pending, time::Duration};

use tokio::{process::ChildStderr, sync::oneshot, time::timeout};

use super::{Exit, group::Group, said::Said};

/// How long a program may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// How long what it has said may take to be read, if someone who left the group still speaks.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A program in its keeper's hands.
#[derive(Debug)]
pub(super) struct Kept {
    /// What it is called in the log.
    pub(super) program: String,
    pub(super) group: Group,
    pub(super) said: Said<ChildStderr>,
    /// Resolves when nobody holds the link any more.
    pub(super) released: oneshot::Receiver<Infallible>,
    /// Is told how it ended.
    pub(super) exit: oneshot::Sender<Exit>,
}

impl Kept {
    /// Keeps the program until it has ended, by itself or because the link was dropped.
    pub(super) async fn keep(self) {
        let Self {
            program,
            group,
            mut said,
            released,
            exit,
        } = self;
        let mut last_words = None;
        let end = async {
            tokio::select! {
                () = group.ended() => return,
                _ = released => group.terminate(),
            }
            if timeout(GRACE, group.ended()).await.is_err() {
                tracing::warn!(program, "server program does not end; it is killed");
            }
        };
        // Listened to in its last moments too: who is not listened to may block instead of ending.
        let listening = async {
            listen(&program, &mut said, &mut last_words).await;
            pending::<Infallible>().await
        };
        tokio::select! {
            () = end => {}
            never = listening => match never {},
        }
        let status = group.end().await;
        // All it has said is in the pipe by now, unless someone escaped with the other end.
        drop(timeout(LAST_WORDS, listen(&program, &mut said, &mut last_words)).await);
        let ended = Exit { status, last_words };
        tracing::debug!(program, exit = %ended, "server program has ended");
        // Whoever dropped the link does not ask.
        drop(exit.send(ended));
    }
}

/// Logs what a program says, until it is silent for good.
async fn listen(program: &str, said: &mut Said<ChildStderr>, last_words: &mut Option<String>) {
    while said.is_open() {
        for line in said.next().await {
            tracing::info!(program, line, "server program says");
            *last_words = Some(line);
        }
    }
}
