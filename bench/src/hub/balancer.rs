//! Load balancer in front of several nodes, which forwards each connection to the next one that
//! accepts it.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use anyhow::Result;

/// Load balancer on a free port. It runs until the program exits.
#[derive(Debug)]
pub(crate) struct LoadBalancer {
    url: String,
}

impl LoadBalancer {
    /// Distributes connections over nodes round-robin.
    pub(crate) fn start(nodes: Vec<String>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        thread::spawn(move || {
            for (turn, client) in listener.incoming().enumerate() {
                let order = nodes.iter().cycle().skip(turn % nodes.len());
                let mut order = order.take(nodes.len());
                let server = order.find_map(|node| TcpStream::connect(node).ok());
                if let (Ok(client), Some(server)) = (client, server) {
                    // A connection that cannot be forwarded is closed.
                    drop(pass(&client, &server));
                }
            }
        });
        Ok(Self { url })
    }

    /// Returns the registry behind it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

fn pass(client: &TcpStream, server: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    for (mut from, mut to) in [
        (client.try_clone()?, server.try_clone()?),
        (server.try_clone()?, client.try_clone()?),
    ] {
        thread::spawn(move || {
            let mut buffer = vec![0; 128 << 10];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                if to.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
            // If either end closes, the other is closed.
            drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
        });
    }
    Ok(())
}
