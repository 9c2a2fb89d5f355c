//! A way to the broker on which the data connection of a node can be cut.

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::broker::Broker;

/// Carries connections to a broker. It ends with the test's runtime.
pub(super) struct Cable {
    port: u16,
    cuts: watch::Sender<()>,
}

impl Cable {
    pub(super) async fn to(broker: &Broker) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (there, cuts) = (broker.address(), watch::Sender::new(()));
        let cutter = cuts.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&there).await.unwrap();
                tokio::spawn(carry(client, server, cutter.subscribe()));
            }
        });
        Self { port, cuts }
    }

    /// Where the broker seems to be.
    pub(super) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Cuts the data connections that stand. New ones are carried again.
    pub(super) fn cut(&self) {
        self.cuts.send_replace(());
    }
}

async fn carry(mut client: TcpStream, mut server: TcpStream, mut cuts: watch::Receiver<()>) {
    // The broker speaks first; then the client says what it is for.
    let mut buffer = vec![0; 64 << 10];
    let Ok(length @ 1..) = server.read(&mut buffer).await else {
        return;
    };
    client.write_all(&buffer[..length]).await.unwrap();
    let Ok(length @ 1..) = client.read(&mut buffer).await else {
        return;
    };
    let is_data = buffer[..length].windows(6).any(|bytes| bytes == b" data ");
    server.write_all(&buffer[..length]).await.unwrap();
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = cuts.changed(), if is_data => {}
    }
}
