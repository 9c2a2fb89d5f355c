//! Carries connections from a sandbox's namespace to ports of the host's loopback, where a proxy of
//! the client's listens.

use std::{io, net::Ipv4Addr, net::TcpListener};

use tokio::{net::TcpStream, task::JoinSet, time::timeout};

use crate::{
    accept::{self, Admission, Slots},
    limits::Limits,
    tunnel,
};

/// Serves until dropped, which cuts every connection.
#[derive(Debug)]
pub struct Bridge {
    // Dropping the set ends its tasks.
    _tasks: JoinSet<()>,
}

impl Bridge {
    /// Carries what each socket accepts to the port beside it, on 127.0.0.1 of this namespace. Runs
    /// on the current runtime.
    pub fn start(ports: Vec<(TcpListener, u16)>, limits: Limits) -> io::Result<Self> {
        let slots = Slots::new(limits.connections);
        let mut tasks = JoinSet::new();
        for (listener, port) in ports {
            let listener = accept::adopt(listener)?;
            let serve = move |stream, _, admission| carry(stream, port, admission, limits);
            tasks.spawn(accept::accept(listener, slots.clone(), serve));
        }
        Ok(Self { _tasks: tasks })
    }
}

async fn carry(near: TcpStream, port: u16, admission: Admission, limits: Limits) {
    let Admission::Served(_slot) = admission else {
        return;
    };
    let connecting = TcpStream::connect((Ipv4Addr::LOCALHOST, port));
    match timeout(limits.connect, connecting).await {
        Ok(Ok(far)) => {
            // Only a matter of speed: the tunnel works without.
            drop(far.set_nodelay(true));
            tunnel::join(near.into(), far.into(), limits.idle).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, port, "cannot reach the proxy of the client"),
        Err(_) => tracing::debug!(port, "the proxy of the client does not accept"),
    }
}
