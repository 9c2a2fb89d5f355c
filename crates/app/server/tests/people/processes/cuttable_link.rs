//! A TCP link to a server that tests can cut and redirect.

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

/// Link to a server. Dropping it cuts it for good.
pub(crate) struct CuttableLink {
    pub(crate) url: String,
    end: Arc<Mutex<SocketAddr>>,
    cuts: watch::Sender<u32>,
    accepting: AbortHandle,
}

impl CuttableLink {
    /// Creates a link to a server.
    pub(crate) async fn to(server: &Server) -> Self {
        Self::to_address(address(server)).await
    }

    /// Creates a link to whatever listens there.
    pub(crate) async fn to_address(end: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let end = Arc::new(Mutex::new(end));
        let (cuts, cut) = watch::channel(0);
        let accepting = tokio::spawn(accept(listener, Arc::clone(&end), cut)).abort_handle();
        Self {
            url,
            end,
            cuts,
            accepting,
        }
    }

    /// Cuts all connections. New ones are accepted at once.
    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts the link for good: new connections are refused.
    pub(crate) fn end(&self) {
        self.accepting.abort();
        self.cut();
    }

    /// Cuts all connections and redirects new ones to another server.
    pub(crate) fn relay_to(&self, server: &Server) {
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
    while let Ok((mut downstream, _)) = listener.accept().await {
        let address = *end.lock().unwrap();
        let mut cut = cut.clone();
        cut.mark_unchanged();
        tokio::spawn(async move {
            let Ok(mut far) = TcpStream::connect(address).await else {
                return;
            };
            tokio::select! {
                _ = copy_bidirectional(&mut downstream, &mut far) => {}
                _ = cut.changed() => {}
            }
        });
    }
}
