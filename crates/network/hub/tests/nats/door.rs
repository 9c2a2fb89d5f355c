//! What stands in front of several nodes: each connection goes to the first that takes it.

use std::net::SocketAddr;

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub(crate) struct Door {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Door {
    pub(crate) async fn open(nodes: [SocketAddr; 3]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(pass(client, nodes));
            }
        });
        Self {
            address,
            _task: task,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

async fn pass(mut client: TcpStream, nodes: [SocketAddr; 3]) {
    for node in nodes {
        if let Ok(mut node) = TcpStream::connect(node).await {
            client.set_nodelay(true).unwrap();
            node.set_nodelay(true).unwrap();
            // Either end may break it off; the other sees the end then.
            let ended = copy_bidirectional(&mut client, &mut node).await;
            drop(ended);
            return;
        }
    }
}
