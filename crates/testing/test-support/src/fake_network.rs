//! Network that the test scripts: its ports, and the far ends of its tunnels.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use exec_env::tunnel::{
    EnvironmentNetwork, TunnelError, TunnelFuture, TunnelListener, TunnelStream, TunnelTarget,
};
use exec_wire::{id::ProcessId, tunnel::ListeningPort};
use futures_util::future::{BoxFuture, FutureExt, ready};
use tokio::{
    io::{DuplexStream, duplex},
    sync::{mpsc, watch},
};

/// Bytes in flight in each direction of a tunnel.
const BUFFER_BYTES: usize = 64 << 10;
/// Port of a listener that lets the system choose.
const CHOSEN_PORT: u16 = 40_000;

/// Network of a fake environment.
///
/// Every connection succeeds and no port listens, unless the test says otherwise.
#[derive(Debug)]
pub struct FakeNetwork {
    opened: mpsc::UnboundedSender<(TunnelTarget, DuplexStream)>,
    far_ends: tokio::sync::Mutex<mpsc::UnboundedReceiver<(TunnelTarget, DuplexStream)>>,
    listeners: watch::Sender<Vec<(TunnelTarget, mpsc::UnboundedSender<DuplexStream>)>>,
    refusal: Mutex<Option<TunnelError>>,
    ports: Mutex<Result<Vec<ListeningPort>, TunnelError>>,
    port_requests: AtomicUsize,
}

impl Default for FakeNetwork {
    fn default() -> Self {
        let (opened, far_ends) = mpsc::unbounded_channel();
        Self {
            opened,
            far_ends: tokio::sync::Mutex::new(far_ends),
            listeners: watch::Sender::default(),
            refusal: Mutex::default(),
            ports: Mutex::new(Ok(Vec::new())),
            port_requests: AtomicUsize::new(0),
        }
    }
}

impl FakeNetwork {
    /// Refuses connections and listeners from now on, or accepts them again.
    pub fn refuse(&self, error: Option<TunnelError>) {
        *self.refusal.lock().expect("a call panicked") = error;
    }

    /// Sets the ports that listen.
    pub fn set_ports(&self, ports: Result<Vec<ListeningPort>, TunnelError>) {
        *self.ports.lock().expect("a call panicked") = ports;
    }

    /// Returns the number of requests for the list of ports.
    pub fn port_requests(&self) -> usize {
        self.port_requests.load(Ordering::SeqCst)
    }

    /// Waits for the next tunnel, and returns its target and its far end.
    pub async fn next_opened(&self) -> (TunnelTarget, DuplexStream) {
        let next = self.far_ends.lock().await.recv().await;
        next.expect("this network sends")
    }

    /// Waits for the listener with this index, and returns what it listens on.
    pub async fn listening(&self, index: usize) -> TunnelTarget {
        let mut listeners = self.listeners.subscribe();
        let listening = listeners.wait_for(|listeners| listeners.len() > index);
        listening.await.expect("this network sends")[index]
            .0
            .clone()
    }

    /// Connects to the listener with this index, and returns the far end. `None`: it is closed.
    pub fn connect(&self, index: usize) -> Option<DuplexStream> {
        let (near, far) = duplex(BUFFER_BYTES);
        let listeners = self.listeners.borrow();
        listeners.get(index)?.1.send(near).ok().map(|()| far)
    }

    fn check(&self) -> Result<(), TunnelError> {
        let refusal = self.refusal.lock().expect("a call panicked").clone();
        refusal.map_or(Ok(()), Err)
    }

    fn open_fake(&self, target: TunnelTarget) -> Result<Box<dyn TunnelStream>, TunnelError> {
        self.check()?;
        let (near, far) = duplex(BUFFER_BYTES);
        self.opened
            .send((target, far))
            .expect("this network receives");
        Ok(Box::new(near))
    }

    fn listen_fake(&self, target: TunnelTarget) -> Result<Box<dyn TunnelListener>, TunnelError> {
        self.check()?;
        let (connections, accepted) = mpsc::unbounded_channel();
        let port = match target.port {
            0 => CHOSEN_PORT,
            port => port,
        };
        self.listeners
            .send_modify(|listeners| listeners.push((target, connections)));
        Ok(Box::new(FakeListener { port, accepted }))
    }
}

impl EnvironmentNetwork for FakeNetwork {
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        ready(self.open_fake(target)).boxed()
    }

    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        ready(self.listen_fake(target)).boxed()
    }

    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        let _all_of_them = process;
        self.port_requests.fetch_add(1, Ordering::SeqCst);
        let ports = self.ports.lock().expect("a call panicked").clone();
        ready(ports).boxed()
    }
}

#[derive(Debug)]
struct FakeListener {
    port: u16,
    accepted: mpsc::UnboundedReceiver<DuplexStream>,
}

impl TunnelListener for FakeListener {
    fn port(&self) -> u16 {
        self.port
    }

    fn accept(&mut self) -> BoxFuture<'_, Result<Box<dyn TunnelStream>, TunnelError>> {
        async {
            match self.accepted.recv().await {
                Some(stream) => Ok(Box::new(stream) as Box<dyn TunnelStream>),
                None => Err(TunnelError::Host("the network is gone".to_owned())),
            }
        }
        .boxed()
    }
}

/// Returns a port of a process that listens.
pub fn listening_port(port: u16, address: &str, process: &str) -> ListeningPort {
    ListeningPort {
        port,
        address: address.to_owned(),
        process_id: ProcessId::new(process).ok(),
        os_pid: None,
        program: None,
    }
}

/// Returns a network as an environment has it.
pub fn shared(network: &Arc<FakeNetwork>) -> Arc<dyn EnvironmentNetwork> {
    Arc::clone(network) as Arc<dyn EnvironmentNetwork>
}
