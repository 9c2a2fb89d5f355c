//! One connection to the broker, and whether it stands.
//! Invariant: each loss of it is a new [`Link::losses`], so that whoever relied on it learns of a
//! loss even when the connection is back before they look.

use std::{error::Error, io, time::Duration};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_rustls::rustls;

use super::config::{Login, NatsConfig};
use crate::limits::MAX_FRAME_BYTES;

/// One connection to the broker. It comes back by itself when it is lost.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    /// The client library's handle.
    pub(super) client: Client,
    link: watch::Receiver<Link>,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Link {
    /// Whether it stands now.
    pub(super) is_up: bool,
    /// How often it was lost.
    pub(super) losses: u64,
}

impl Connection {
    /// Connects within [`OPEN`]. `purpose` shows in the broker's list of clients.
    ///
    /// # Errors
    /// [`NatsError`]; a broker that is not there yet is tried again until the time is over.
    pub(super) async fn open(config: &NatsConfig, purpose: &str) -> Result<Self, NatsError> {
        let (link_sender, link) = watch::channel(Link::default());
        let options = options(config, purpose, link_sender).await?;
        let servers = config.servers.to_string();
        let client = first_connection(config, options).await?;
        let limit = client.max_payload();
        if limit < MIN_PAYLOAD {
            return Err(NatsError::Payload { limit });
        }
        // The library tells of the first connection as of every other: shortly after it is made.
        let mut told = link.clone();
        match timeout(OPEN, told.wait_for(|link| link.is_up)).await {
            Ok(Ok(_)) => Ok(Self { client, link }),
            Ok(Err(_)) | Err(_) => Err(NatsError::Unreachable {
                servers,
                source: None,
            }),
        }
    }

    /// The state now.
    pub(super) fn link(&self) -> Link {
        *self.link.borrow()
    }

    /// Follows the state.
    pub(super) fn watch(&self) -> watch::Receiver<Link> {
        self.link.clone()
    }
}

/// Resolves when the connection was lost once more than `losses`, even if it is back.
pub(super) async fn lost(link: &mut watch::Receiver<Link>, losses: u64) {
    // An error means that the client is gone, which is a loss too.
    let gone = link.wait_for(|link| link.losses != losses).await;
    drop(gone);
}

/// Why a node could not join.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// Host: no broker answers.
    #[error("no NATS server answers at {servers}")]
    Unreachable {
        /// Where it was looked for, without the login.
        servers: String,
        /// What the last attempt met.
        #[source]
        source: Option<async_nats::ConnectError>,
    },
    /// Caller: the broker's certificate is not trusted, or TLS failed otherwise.
    #[error("no TLS connection to the NATS server at {servers}")]
    Tls {
        /// The brokers, without the login.
        servers: String,
        /// What went wrong.
        #[source]
        source: async_nats::ConnectError,
    },
    /// Caller: the broker does not know this login.
    #[error("the NATS server at {servers} refuses the login")]
    Login {
        /// The brokers, without the login.
        servers: String,
    },
    /// Caller: the credentials file cannot be used.
    #[error("cannot use the NATS credentials file")]
    Credentials(#[source] std::io::Error),
    /// Host: the broker takes no messages as large as a frame.
    #[error("the NATS server takes messages of at most {limit} bytes; the hub needs {MIN_PAYLOAD}")]
    Payload {
        /// The broker's `max_payload`.
        limit: usize,
    },
    /// Host: the broker has no JetStream, or refused a bucket.
    #[error("cannot open the bucket {bucket}; does the NATS server run with JetStream (-js)?")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// What the broker said.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Host: the broker took no subscription.
    #[error("the NATS server took no subscription")]
    Subscribe(#[source] async_nats::SubscribeError),
}

/// Tries until it works, until trying again is useless, or until the time is over.
async fn first_connection(
    config: &NatsConfig,
    options: ConnectOptions,
) -> Result<Client, NatsError> {
    let addresses = config.servers.addresses();
    let deadline = Instant::now() + OPEN;
    let mut delay = RETRY_LEAST;
    loop {
        let error = match options.clone().connect(addresses).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let servers = config.servers.to_string();
        match error.kind() {
            ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
                return Err(NatsError::Login { servers });
            }
            ConnectErrorKind::Tls => {
                return Err(NatsError::Tls {
                    servers,
                    source: error,
                });
            }
            ConnectErrorKind::ServerParse
            | ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => {}
        }
        if is_tls(&error) {
            return Err(NatsError::Tls {
                servers,
                source: error,
            });
        }
        if Instant::now() + delay >= deadline {
            return Err(NatsError::Unreachable {
                servers,
                source: Some(error),
            });
        }
        tracing::warn!(%servers, %error, "NATS is not reachable yet");
        sleep(delay).await;
        delay = (delay * 2).min(RETRY_MOST);
    }
}

/// Whether TLS itself failed. The library tells of that as of any other failure to read or write.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        // What an `io::Error` wraps is not its source.
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        if error.is::<rustls::Error>() || inner.is_some_and(|inner| inner.is::<rustls::Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

async fn options(
    config: &NatsConfig,
    purpose: &str,
    link: watch::Sender<Link>,
) -> Result<ConnectOptions, NatsError> {
    let mut options = ConnectOptions::new()
        .name(format!(
            "{} {purpose} {}",
            config.prefix.as_str(),
            config.node
        ))
        .connection_timeout(CONNECT)
        .request_timeout(Some(REQUEST))
        .ping_interval(PING)
        .subscription_capacity(SUBSCRIPTION)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            observe(&link, &event);
            std::future::ready(())
        });
    options = match config.servers.login().clone() {
        Login::None => options,
        Login::Token(token) => options.token(token),
        Login::User { name, password } => options.user_and_password(name, password),
    };
    if let Some(file) = &config.credentials_file {
        options = options
            .credentials_file(file)
            .await
            .map_err(NatsError::Credentials)?;
    }
    if let Some(file) = &config.ca_file {
        options = options.add_root_certificates(file.clone());
    }
    Ok(options)
}

fn observe(link: &watch::Sender<Link>, event: &Event) {
    match event {
        Event::Connected => link.send_modify(|link| link.is_up = true),
        Event::Disconnected | Event::Closed => link.send_modify(|link| {
            link.is_up = false;
            link.losses += 1;
        }),
        // The broker or the library dropped a message: whoever waits for it finds the gap.
        Event::SlowConsumer(id) => tracing::error!(id, "a NATS subscription overflowed"),
        Event::ServerError(error) => tracing::warn!(%error, "NATS refused something"),
        Event::ClientError(error) => tracing::debug!(%error, "NATS connection"),
        Event::LameDuckMode | Event::Draining => {}
    }
}

/// From 50 ms, doubling, up to [`RETRY_MOST`]: a broker that restarts is met soon, and one that is
/// away is not hammered.
fn reconnect_delay(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(10);
    (RETRY_LEAST * 2_u32.pow(doublings)).min(RETRY_MOST)
}

/// How long the first connection may take, retries included: broker and hub may start together.
const OPEN: Duration = Duration::from_secs(15);

/// How long one attempt to connect may take.
const CONNECT: Duration = Duration::from_secs(3);

/// How long the broker may take for an answer. Registry calls must end well within ten seconds.
pub(super) const REQUEST: Duration = Duration::from_secs(2);

/// Three unanswered pings end a connection: a broker that hangs is left after six seconds.
const PING: Duration = Duration::from_secs(2);

/// Messages that may wait in one subscription. A circuit's credits allow less than this.
const SUBSCRIPTION: usize = 32 * 1024;

const RETRY_LEAST: Duration = Duration::from_millis(50);
const RETRY_MOST: Duration = Duration::from_secs(1);

/// A frame and what goes around it.
const MIN_PAYLOAD: usize = MAX_FRAME_BYTES + 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_back_off_up_to_a_second() {
        let delays: Vec<_> = (1..8).map(|n| reconnect_delay(n).as_millis()).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(reconnect_delay(usize::MAX), RETRY_MOST);
    }

    #[test]
    fn a_loss_is_remembered_after_the_connection_is_back() {
        let (sender, link) = watch::channel(Link::default());
        observe(&sender, &Event::Connected);
        let before = *link.borrow();
        observe(&sender, &Event::Disconnected);
        observe(&sender, &Event::Connected);
        let after = *link.borrow();
        assert!(before.is_up && after.is_up);
        assert_eq!(after.losses, before.losses + 1);
    }
}
