//! A wire to a server that can be cut, and laid to another server.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::AbortHandle,
};

use crate::test_user::Server;

/// A wire. Dropping it cuts it for good.
pub(super) struct CuttableLink {
    pub(super) url: String,
    end: Arc<Mutex<SocketAddr>>,
    cuts: watch::Sender<u32>,
    accepting: AbortHandle,
}

impl CuttableLink {
    /// Lays one to a server.
    pub(super) async fn to(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let end = Arc::new(Mutex::new(address(server)));
        let (cuts, cut) = watch::channel(0);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&end), cut)).abort_handle();
        Self {
            url,
            end,
            cuts,
            accepting,
        }
    }

    /// Cuts it, wherever bytes are. It can be used again at once.
    pub(super) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts it for good: whoever dials again is refused.
    pub(super) fn end(&self) {
        self.accepting.abort();
        self.cut();
    }

    /// Cuts it, and lays it to another server.
    pub(super) fn relay_to(&self, server: &Server) {
        *self.end.lock().unwrap() = address(server);
        self.cut();
    }
}

impl Drop for CuttableLink {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

fn address(server: &Server) -> SocketAddr {
    let (_, address) = server.url.split_once("://").unwrap();
    address.parse().unwrap()
}

async fn accept(listener: TcpListener, end: Arc<Mutex<SocketAddr>>, cut: watch::Receiver<u32>) {
    while let Ok((mut near, _)) = listener.accept().await {
        let address = *end.lock().unwrap();
        let mut cut = cut.clone();
        cut.mark_unchanged();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(address).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut near, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
