//! What stops a server: SIGTERM, SIGINT, and optionally the end of stdin.

use tokio::{
    io::{AsyncReadExt, Stdin},
    signal::unix::{Signal, SignalKind, signal},
};

/// Role of stdin for a server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StdinClose {
    /// Ignored, or handled elsewhere.
    #[default]
    Ignored,
    /// Its end stops the server. Data before it is discarded.
    Ends,
}

/// Requests to shut down.
#[derive(Debug)]
pub struct ShutdownSignal {
    terminate: Signal,
    interrupt: Signal,
    stdin: Option<Stdin>,
}

impl ShutdownSignal {
    /// Registers the handlers.
    pub fn new(stdin: StdinClose) -> anyhow::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            stdin: match stdin {
                StdinClose::Ignored => None,
                StdinClose::Ends => Some(tokio::io::stdin()),
            },
        })
    }

    /// Waits for a request. Stdin ends once; signals repeat.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = closed(&mut self.stdin) => self.stdin = None,
        }
    }
}

/// Waits for the end of stdin. Discards data before it.
pub async fn stdin_closed() {
    closed(&mut Some(tokio::io::stdin())).await;
}

/// Waits for the end of the input; forever without one.
async fn closed(stdin: &mut Option<Stdin>) {
    let Some(stdin) = stdin else {
        return std::future::pending().await;
    };
    let mut ignored = [0; 4096];
    // A read error counts as the end.
    while stdin.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}
