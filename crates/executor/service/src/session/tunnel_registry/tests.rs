use exec_env::tunnel::{TunnelFuture, TunnelStream};
use exec_test_support::fake_network::FakeNetwork;
use exec_wire::{
    id::ProcessId,
    tunnel::{CloseTunnel, ListeningPort},
};
use futures_util::future::{FutureExt, poll_immediate};
use tokio::sync::Semaphore;

use super::*;

/// A network in which opening takes until the test permits it.
#[derive(Debug)]
struct SlowNetwork {
    fake: FakeNetwork,
    permits: Arc<Semaphore>,
}

impl SlowNetwork {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            fake: FakeNetwork::default(),
            permits: Arc::new(Semaphore::new(0)),
        })
    }

    fn after_permit<T: Send + 'static>(&self, opening: TunnelFuture<T>) -> TunnelFuture<T> {
        let permits = Arc::clone(&self.permits);
        async move {
            permits.acquire_owned().await.unwrap().forget();
            opening.await
        }
        .boxed()
    }
}

impl EnvironmentNetwork for SlowNetwork {
    fn open(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelStream>> {
        self.after_permit(self.fake.open(target))
    }

    fn listen(&self, target: TunnelTarget) -> TunnelFuture<Box<dyn TunnelListener>> {
        self.after_permit(self.fake.listen(target))
    }

    fn ports(&self, process: Option<ProcessId>) -> TunnelFuture<Vec<ListeningPort>> {
        self.fake.ports(process)
    }
}

/// A registry whose network is slow.
struct TestRegistry {
    registry: Arc<TunnelRegistry>,
    network: Arc<SlowNetwork>,
}

impl TestRegistry {
    fn new() -> Self {
        Self {
            registry: Arc::default(),
            network: SlowNetwork::new(),
        }
    }

    fn open(&self) -> BoxFuture<'static, Result<(), RpcError>> {
        let params = OpenTunnel {
            tunnel_id: TunnelId::new("t").unwrap(),
            host: None,
            port: 80,
            process_id: None,
            sandbox: None,
        };
        let network = Arc::clone(&self.network) as Arc<dyn EnvironmentNetwork>;
        let opened = self.registry.open(network, params);
        opened.map(|opened| opened.map(drop)).boxed()
    }

    fn listen(&self) -> BoxFuture<'static, Result<(), RpcError>> {
        let params = ListenTunnel {
            listen_id: ListenId::from(&TunnelId::new("t").unwrap()),
            host: None,
            port: 0,
            process_id: None,
            sandbox: None,
        };
        let network = Arc::clone(&self.network) as Arc<dyn EnvironmentNetwork>;
        let opened = self.registry.listen(network, params);
        opened.map(|opened| opened.map(drop)).boxed()
    }

    /// Expects that the opening failed, and that nothing is left of it.
    async fn expect_cancelled(&self, opening: BoxFuture<'static, Result<(), RpcError>>) {
        let error = poll_immediate(opening).await.unwrap().unwrap_err();
        assert_eq!(error.message, "tunnel `t` was closed while it was opening");
        assert!(self.registry.is_empty());
        assert!(self.registry.lock().opening.is_empty());
    }
}

#[tokio::test]
async fn clear_cancels_what_is_opening() {
    for start in [TestRegistry::open, TestRegistry::listen] {
        for is_open_at_the_same_time in [false, true] {
            let test = TestRegistry::new();
            let mut opening = start(&test);
            assert!(poll_immediate(&mut opening).await.is_none());
            if is_open_at_the_same_time {
                test.network.permits.add_permits(1);
            }
            test.registry.clear("client does not support tunnels");
            test.expect_cancelled(opening).await;
            // A listener that was opened is closed again.
            assert!(test.network.fake.connect(0).is_none());
        }
    }
}

#[tokio::test]
async fn close_of_the_client_cancels_what_is_opening() {
    for start in [TestRegistry::open, TestRegistry::listen] {
        let test = TestRegistry::new();
        let mut opening = start(&test);
        assert!(poll_immediate(&mut opening).await.is_none());
        test.network.permits.add_permits(1);
        test.registry
            .handle_message(TunnelMessage::Close(CloseTunnel {
                tunnel_id: TunnelId::new("t").unwrap(),
                reason: None,
            }));
        test.expect_cancelled(opening).await;
    }
}

#[tokio::test]
async fn cancelled_opening_does_not_release_the_id_of_the_next_one() {
    let test = TestRegistry::new();
    let (mut first, mut second) = (test.open(), test.open());
    assert!(poll_immediate(&mut first).await.is_none());
    test.registry.clear("client does not support tunnels");
    assert!(poll_immediate(&mut second).await.is_none());
    drop(first);
    let error = poll_immediate(test.open()).await.unwrap().unwrap_err();
    assert_eq!(error.message, "tunnel id `t` is opening");
    test.network.permits.add_permits(1);
    poll_immediate(second).await.unwrap().unwrap();
    assert!(!test.registry.is_empty());
}
