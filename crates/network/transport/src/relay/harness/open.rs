//! Opening a link to an executor behind a relay.

use std::{sync::Arc, time::Duration};

use exec_relay::{identity::Identity, stream::Stream};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{
    Ticket, Tickets,
    dial::dial,
    driver::Driver,
    handshake::{Accepted, shake_hands},
    reopen::Reopen,
};
use crate::{
    connect::{CONNECT_TIMEOUT, ConnectError, Headers, Proxy},
    link::{Link, Path},
    relay::{bell::Bell, cell::Cell, halves},
    tls::Trust,
    trace::TraceSource,
    websocket::socket::Socket,
};

/// How an executor is reached.
#[derive(Clone, Debug)]
pub struct HarnessOptions {
    /// Whose certificates are accepted of a relay.
    pub trust: Trust,
    /// What the relay is reached through.
    pub proxy: Option<Proxy>,
    /// What is sent with the request for a websocket.
    pub headers: Headers,
    /// What the requests for websockets belong to. Absent: they carry no trace.
    pub trace: Option<TraceSource>,
    /// How long opening a websocket may take.
    pub connect_timeout: Duration,
    /// How long the executor may take to answer. Whoever uses the link counts from the same moment:
    /// [`Link::handshake_began`].
    pub handshake_timeout: Duration,
    /// How long a reliable link may be without a websocket. Longer than an executor keeps a stream
    /// whose harness is away, and less than it keeps a session.
    pub recovery: Duration,
    /// What the executor is offered.
    pub offer: Offer,
}

/// Whether an executor is told that we acknowledge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Offer {
    /// It is; if it does too, the link survives the loss of its websocket.
    Reliable,
    /// It is not: this end behaves as a stock one does.
    Plain,
}

impl Default for HarnessOptions {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            proxy: None,
            headers: Headers::default(),
            trace: None,
            connect_timeout: CONNECT_TIMEOUT,
            handshake_timeout: Duration::from_secs(10),
            recovery: Duration::from_secs(25),
            offer: Offer::Reliable,
        }
    }
}

/// Opens a link to the executor that the tickets lead to. Dropping the future leaves nothing behind.
///
/// A relay that does not know the ticket's URL any more (401) is asked once more with a fresh ticket.
///
/// # Errors
/// When there is no ticket, no websocket, or no answer in time.
pub async fn open(
    identity: Arc<Identity>,
    tickets: Arc<dyn Tickets>,
    options: HarnessOptions,
) -> Result<Link, ConnectError> {
    let (ticket, mut socket) = reach(&*tickets, &options).await?;
    let within = options.handshake_timeout;
    let began = Instant::now();
    let shaken = shake_hands(&mut socket, &identity, &ticket, options.offer);
    let accepted = timeout(within, shaken).await.unwrap_or_else(|_| {
        Err(ConnectError::Timeout {
            peer: peer(&ticket),
            within,
        })
    })?;
    let peer = peer(&ticket);
    let reopen = Reopen {
        tickets,
        options,
        executor_key: ticket.executor_key,
    };
    Ok(Link {
        handshake_began: Some(began),
        ..drive(socket, accepted, reopen, peer)
    })
}

async fn reach(
    tickets: &dyn Tickets,
    options: &HarnessOptions,
) -> Result<(Ticket, Socket), ConnectError> {
    let ticket = tickets.fetch().await?;
    match dial(&ticket, options).await {
        Err(ConnectError::Refused { status: 401, .. }) => {
            let ticket = tickets.fetch().await?;
            let socket = dial(&ticket, options).await?;
            Ok((ticket, socket))
        }
        opened => Ok((ticket, opened?)),
    }
}

/// Starts the driver of a stream. From now on the relay is pinged, as by the stock harness.
pub(super) fn drive(mut socket: Socket, accepted: Accepted, reopen: Reopen, peer: String) -> Link {
    let Accepted {
        stream_id,
        channel,
        delivery,
    } = accepted;
    socket.writer.put_off_ping();
    let bell = Arc::new(Bell::default());
    let now = Instant::now().into_std();
    let stream = Stream::new(stream_id.clone(), channel, delivery, now);
    let cell = Cell::new(stream_id, stream, Arc::clone(&bell));
    let link = halves::link(Arc::clone(&cell), peer);
    let (path, watched) = watch::channel(Path::There);
    let driver = Driver::new(cell, bell, delivery, socket, reopen, path);
    drop(tokio::spawn(driver.run()));
    Link {
        path: Some(watched),
        ..link
    }
}

fn peer(ticket: &Ticket) -> String {
    format!("environment {:?}", ticket.environment_id)
}
