//! One request in plain HTTP, and its response.
//!
//! Carries one body, and not a byte more.

use std::io;

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Duration,
};

use super::{
    chunked_body::{ChunkError, Chunks},
    message_head::{Framing, HeadBuffer},
    request::{Kind, Request, Version},
    response::{Response, Sequel},
};
use crate::{limits, tunnel::Activity};

/// How an exchange ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The response went through.
    Done,
    /// Both go on in another protocol, of which the server said this already.
    Switched(Vec<u8>),
    /// The server gave no response; nothing was said to the client yet.
    NoResponse,
    /// Something broke in the middle. Nobody may take what there is for the whole.
    Cut,
}

/// Sends `request` with its body, which begins with `early`, and the response back, both at once:
/// a server may answer before it has read everything.
pub(super) async fn exchange(
    request: &Request,
    early: &[u8],
    client: &mut TcpStream,
    server: &mut TcpStream,
    idle: Duration,
) -> Outcome {
    let activity = Activity::start();
    let (mut client_reader, mut client_writer) = client.split();
    let (mut server_reader, mut server_writer) = server.split();
    let send = async {
        let head = request.write_head();
        server_writer
            .write_all(&head)
            .await
            .map_err(RelayError::Sink)?;
        match &request.kind {
            Kind::Plain {
                framing,
                websocket: false,
                ..
            } => {
                relay(
                    *framing,
                    early,
                    &mut client_reader,
                    &mut server_writer,
                    &activity,
                )
                .await
            }
            // What a client says early belongs to the other protocol.
            Kind::Plain { .. } | Kind::Connect => Ok(()),
        }
    };
    let spoiled = async {
        match send.await {
            // A server that takes no more may still answer.
            Ok(()) | Err(RelayError::Sink(_)) => std::future::pending().await,
            Err(RelayError::Source(_) | RelayError::Cut | RelayError::Malformed(_)) => {}
        }
    };
    let receive = receive(request, &mut server_reader, &mut client_writer, &activity);
    tokio::select! {
        outcome = receive => outcome,
        () = spoiled => Outcome::Cut,
        () = activity.silence(idle) => Outcome::Cut,
    }
}

async fn receive(
    request: &Request,
    server: &mut (impl AsyncRead + Unpin),
    client: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> Outcome {
    let mut buffer = HeadBuffer::default();
    for turn in 0..MAX_INTERIM {
        let unanswered = || {
            if turn == 0 {
                Outcome::NoResponse
            } else {
                Outcome::Cut
            }
        };
        let Ok((head, rest)) = buffer.read(server).await else {
            return unanswered();
        };
        activity.mark();
        let Ok(response) = Response::parse(&head) else {
            return unanswered();
        };
        let Ok(sequel) = response.sequel(request) else {
            return unanswered();
        };
        let wanted = match sequel {
            Sequel::Switch if !request.is_websocket() => return unanswered(),
            Sequel::Interim => request.version == Version::Http11,
            Sequel::Switch | Sequel::Nothing | Sequel::Body(_) => true,
        };
        if wanted
            && client
                .write_all(&response.write_head(sequel))
                .await
                .is_err()
        {
            return Outcome::Cut;
        }
        match sequel {
            Sequel::Interim => buffer = HeadBuffer::starting_with(rest),
            Sequel::Switch => return Outcome::Switched(rest),
            Sequel::Nothing => return Outcome::Done,
            Sequel::Body(framing) => {
                return match relay(framing, &rest, server, client, activity).await {
                    Ok(()) => Outcome::Done,
                    Err(_) => Outcome::Cut,
                };
            }
        }
    }
    Outcome::Cut
}

/// Responses on the way to the last one. A server that sends more does not mean well.
const MAX_INTERIM: usize = 16;

/// Carries a body whose first bytes, and perhaps more than that, are `early`.
pub(super) async fn relay(
    framing: Framing,
    early: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
    activity: &Activity,
) -> Result<(), RelayError> {
    let mut body = Body::new(framing);
    let count = body.advance(early)?;
    writer
        .write_all(&early[..count])
        .await
        .map_err(RelayError::Sink)?;
    if body.is_done() {
        return Ok(());
    }
    let mut buffer = vec![0; limits::BUFFER];
    while !body.is_done() {
        let read = reader.read(&mut buffer).await.map_err(RelayError::Source)?;
        if read == 0 {
            return body.handle_close();
        }
        activity.mark();
        let count = body.advance(&buffer[..read])?;
        writer
            .write_all(&buffer[..count])
            .await
            .map_err(RelayError::Sink)?;
        activity.mark();
    }
    Ok(())
}

/// Why a body did not get through whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum RelayError {
    /// Peer: its connection failed.
    #[error("cannot read the body")]
    Source(#[source] io::Error),
    /// Peer: it closed the connection too early.
    #[error("the body is incomplete")]
    Cut,
    /// Peer: it sent something else than it said.
    #[error("the body is malformed")]
    Malformed(#[from] ChunkError),
    /// Peer, the other one: it takes no more.
    #[error("cannot write the body")]
    Sink(#[source] io::Error),
}

#[derive(Debug)]
enum Body {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl Body {
    fn new(framing: Framing) -> Self {
        match framing {
            Framing::Length(length) => Self::Length(length),
            Framing::Chunked => Self::Chunked(Chunks::new()),
            Framing::UntilClose => Self::UntilClose,
        }
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<usize, ChunkError> {
        match self {
            Self::Length(left) => {
                let here = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(*left);
                *left -= here;
                Ok(usize::try_from(here).unwrap_or(bytes.len()))
            }
            Self::Chunked(chunks) => chunks.advance(bytes),
            Self::UntilClose => Ok(bytes.len()),
        }
    }

    fn is_done(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_done(),
            Self::UntilClose => false,
        }
    }

    fn handle_close(&self) -> Result<(), RelayError> {
        match self {
            Self::UntilClose => Ok(()),
            Self::Length(_) | Self::Chunked(_) => Err(RelayError::Cut),
        }
    }
}
