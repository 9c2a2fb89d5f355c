//! What only tests need that read websockets message by message, or frame by frame.

use exec_relay::frame::{Body, Frame};
use exec_transport::{
    link::{Link, Role},
    websocket,
};
use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::{
    harness::{Relay, Stream},
    stand::Request,
};

impl Request {
    /// Agrees to a websocket that carries messages.
    pub(crate) async fn link(self) -> Link {
        let (read, write) = self.upgrade().await.into_split();
        websocket::link(read, write, &[], Role::Server, "test".to_owned())
    }
}

impl Relay {
    /// Resets a stream, as a relay does when its harness is gone.
    pub(crate) async fn reset(&mut self, stream: Stream) {
        let reason = "harness_disconnected".to_owned();
        self.send(&Frame::new(stream.id, Body::Reset { reason }))
            .await;
    }
}

/// Reads one frame of a client: the first byte of its head, and the payload.
pub(crate) async fn frame(stream: &mut TcpStream) -> Option<(u8, Vec<u8>)> {
    let first = stream.read_u8().await.ok()?;
    let second = stream.read_u8().await.ok()?;
    assert!(second >= 0x80, "clients mask");
    let length = match second & 0x7f {
        126 => u64::from(stream.read_u16().await.ok()?),
        127 => stream.read_u64().await.ok()?,
        length => u64::from(length),
    };
    let mut mask = [0; 4];
    stream.read_exact(&mut mask).await.ok()?;
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload).await.ok()?;
    for (byte, mask) in payload.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    Some((first, payload))
}
