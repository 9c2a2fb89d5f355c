//! One request in plain HTTP, and its response.

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::Duration,
};

use super::{
    head::HeadBuffer,
    relay::{RelayError, relay},
    request::{Kind, Request, Version},
    response::{Response, Sequel},
};
use crate::tunnel::Activity;

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
