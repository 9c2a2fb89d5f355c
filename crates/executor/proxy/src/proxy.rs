//! A proxy that runs.

use std::{io, net::SocketAddr, sync::Arc};

use exec_env::network::NetworkWatcher;
use exec_wire::id::ProcessId;
use tokio::{net::TcpStream, sync::Semaphore, task::JoinSet};

use crate::{
    accept::{self, Admission, Slots},
    gate::Gate,
    http,
    limits::Limits,
    listeners::Listeners,
    outside::Outside,
    settings::Checked,
    socks::{self, Datagrams},
};

/// Serves one process until dropped, which cuts every connection.
#[derive(Debug)]
pub struct Proxy {
    // Dropping the set ends its tasks.
    _tasks: JoinSet<()>,
}

/// What a proxy is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What it lets through.
    pub settings: Checked,
    /// Whose connections these are, for the record.
    pub process_id: ProcessId,
    /// Who is asked and told. Absent: nobody, and what nothing decides is denied.
    pub watcher: Option<Arc<dyn NetworkWatcher>>,
    /// Where connections go.
    pub outside: Arc<dyn Outside>,
    /// What it holds at most.
    pub limits: Limits,
}

impl Proxy {
    /// Serves what `listeners` accept, on the current runtime. Sockets that the settings have no
    /// use for are closed.
    pub fn start(setup: Setup, listeners: Listeners) -> io::Result<Self> {
        let Setup {
            settings,
            process_id,
            watcher,
            outside,
            limits,
        } = setup;
        let gate = Arc::new(Gate {
            policy: settings.policy,
            mode: settings.mode,
            process_id,
            watcher,
            decision_timeout: settings.decision_timeout,
            outside,
            limits,
            questions: Semaphore::new(limits.decisions),
        });
        let slots = Slots::new(limits.connections);
        let mut tasks = JoinSet::new();
        let http = accept::adopt(listeners.http)?;
        let http_gate = gate.clone();
        let serve =
            move |stream, peer, admission| serve_http(http_gate.clone(), stream, peer, admission);
        tasks.spawn(accept::accept(http, slots.clone(), serve));
        if let Some(socks) = listeners.socks.filter(|_| settings.socks) {
            let socks = accept::adopt(socks)?;
            let datagrams = listeners.datagrams.filter(|_| settings.datagrams);
            let datagrams = datagrams.map(Datagrams::adopt).transpose()?.map(Arc::new);
            if let Some(datagrams) = datagrams.clone() {
                let gate = gate.clone();
                tasks.spawn(async move { datagrams.run(gate).await });
            }
            let serve = move |stream, peer, admission| {
                serve_socks(gate.clone(), datagrams.clone(), stream, peer, admission)
            };
            tasks.spawn(accept::accept(socks, slots, serve));
        }
        Ok(Self { _tasks: tasks })
    }
}

async fn serve_http(gate: Arc<Gate>, stream: TcpStream, peer: SocketAddr, admission: Admission) {
    match admission {
        Admission::Served(_slot) => http::serve(&gate, stream, peer).await,
        Admission::TurnedAway(_slot) => http::turn_away(stream, &gate.limits).await,
    }
}

async fn serve_socks(
    gate: Arc<Gate>,
    datagrams: Option<Arc<Datagrams>>,
    stream: TcpStream,
    peer: SocketAddr,
    admission: Admission,
) {
    match admission {
        Admission::Served(_slot) => {
            socks::serve(&gate, datagrams.as_deref(), stream, peer).await;
        }
        Admission::TurnedAway(_slot) => socks::turn_away(stream, &gate.limits).await,
    }
}
