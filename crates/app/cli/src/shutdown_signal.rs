//! What stops a server: two signals, and the end of its standard input if that was asked for.

use tokio::{
    io::{AsyncReadExt, Stdin},
    signal::unix::{Signal, SignalKind, signal},
};

/// What standard input is to a server.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum StdinClose {
    /// Nothing; or its end is somebody else's business.
    #[default]
    Ignored,
    /// Its end is the server's. What comes before it is read and forgotten.
    Ends,
}

/// Whatever asks a server to stop.
#[derive(Debug)]
pub struct ShutdownSignal {
    terminate: Signal,
    interrupt: Signal,
    stdin: Option<Stdin>,
}

impl ShutdownSignal {
    /// Listens from now on.
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

    /// Waits until the server is asked. Standard input ends once, signals come again.
    pub async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            () = closed(&mut self.stdin) => self.stdin = None,
        }
    }
}

/// Waits for the end of standard input. What comes before it is read and forgotten.
pub async fn stdin_closed() {
    closed(&mut Some(tokio::io::stdin())).await;
}

/// Waits for the end of an input, if there is one.
async fn closed(stdin: &mut Option<Stdin>) {
    let Some(stdin) = stdin else {
        return std::future::pending().await;
    };
    let mut ignored = [0; 4096];
    // An input that cannot be read has no other end than this.
    while stdin.read(&mut ignored).await.is_ok_and(|read| read > 0) {}
}
