//! A TCP forwarder in front of a server whose connections can be cut.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::Result;

/// Bytes of one read.
const READ_BYTES: usize = 64 << 10;

/// Forwards connections to one address until the process ends.
#[derive(Debug)]
pub(crate) struct CuttingForwarder {
    address: SocketAddr,
    /// Both ends of the connections since the last cut.
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl CuttingForwarder {
    /// Starts to forward to `upstream`.
    pub(crate) fn start(upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (address, open) = (listener.local_addr()?, Arc::default());
        let (accepted, upstream) = (Arc::clone(&open), upstream.to_owned());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A peer that is gone closes the connection, which the client sees.
                drop(forward_both(client, &upstream, &accepted));
            }
        });
        Ok(Self { address, open })
    }

    /// Returns the address to connect to.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts every open connection, with what is on the way. Returns whether there was one.
    pub(crate) fn cut(&self) -> bool {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        let was_open = |stream: &TcpStream| stream.shutdown(Shutdown::Both).is_ok();
        open.iter().filter(|stream| was_open(stream)).count() > 0
    }
}

fn forward_both(client: TcpStream, upstream: &str, open: &Mutex<Vec<TcpStream>>) -> io::Result<()> {
    let server = TcpStream::connect(upstream)?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        let mut open = open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push(stream.try_clone()?);
    }
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        thread::spawn(move || forward(from, to));
    }
    Ok(())
}

/// Copies until either end closes, and closes the other.
fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    for stream in [from, to] {
        // It may be closed already.
        drop(stream.shutdown(Shutdown::Both));
    }
}
