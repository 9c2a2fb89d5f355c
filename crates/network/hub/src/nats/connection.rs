//! A connection to the broker and its state.
//! Invariant: each loss increments [`NatsLinkState::losses`], so that users of the connection
//! notice a loss even if it is already back.

use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};
use exec_registry::http::has_tls_error;
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::config::{NatsConfig, NatsLogin};
use crate::limits::MAX_FRAME_BYTES;

/// A connection to the broker. It reconnects by itself.
#[derive(Clone, Debug)]
pub(super) struct NatsConnection {
    /// Handle of the client library.
    pub(super) client: Client,
    link: watch::Receiver<NatsLinkState>,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct NatsLinkState {
    /// Whether it is connected.
    pub(super) is_up: bool,
    /// Number of losses so far.
    pub(super) losses: u64,
}

impl NatsConnection {
    /// Connects within [`OPEN_TIMEOUT`]. `purpose` appears in the broker's list of clients.
    ///
    /// # Errors
    /// Returns [`NatsError`]. Retries an unreachable broker until the time limit.
    pub(super) async fn open(config: &NatsConfig, purpose: &str) -> Result<Self, NatsError> {
        let (link_sender, link) = watch::channel(NatsLinkState::default());
        let options = options(config, purpose, link_sender).await?;
        let servers = config.servers.to_string();
        let client = first_connection(config, options).await?;
        let limit = client.max_payload();
        if limit < MIN_PAYLOAD {
            return Err(NatsError::Payload { limit });
        }
        // The library reports the first connection by an event shortly after it is made.
        let mut reported = link.clone();
        match timeout(OPEN_TIMEOUT, reported.wait_for(|link| link.is_up)).await {
            Ok(Ok(_)) => Ok(Self { client, link }),
            Ok(Err(_)) | Err(_) => Err(NatsError::Unreachable {
                servers,
                source: None,
            }),
        }
    }

    /// Returns the current state.
    pub(super) fn link(&self) -> NatsLinkState {
        *self.link.borrow()
    }

    /// Subscribes to the state.
    pub(super) fn watch(&self) -> watch::Receiver<NatsLinkState> {
        self.link.clone()
    }
}

/// Resolves when the connection has been lost since `losses`, even if it is back.
pub(super) async fn connection_lost(link: &mut watch::Receiver<NatsLinkState>, losses: u64) {
    // An error means that the client is gone, which counts as a loss.
    let changed = link.wait_for(|link| link.losses != losses).await;
    drop(changed);
}

/// Why a node could not join the cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// Host: no broker responds.
    #[error("no NATS server responds at {servers}")]
    Unreachable {
        /// The brokers, without login.
        servers: String,
        /// Error of the last attempt.
        #[source]
        source: Option<async_nats::ConnectError>,
    },
    /// Caller: the broker's certificate is not trusted, or the TLS handshake failed.
    #[error("TLS handshake with the NATS server at {servers} failed")]
    Tls {
        /// The brokers, without login.
        servers: String,
        /// The error.
        #[source]
        source: async_nats::ConnectError,
    },
    /// Caller: the broker rejects the login.
    #[error("NATS server at {servers} rejected the login")]
    Login {
        /// The brokers, without login.
        servers: String,
    },
    /// Caller: the credentials file is invalid.
    #[error("invalid NATS credentials file")]
    Credentials(#[source] std::io::Error),
    /// Host: the broker's message limit is smaller than a frame.
    #[error("NATS server accepts messages of at most {limit} bytes; the hub needs {MIN_PAYLOAD}")]
    Payload {
        /// The broker's `max_payload`.
        limit: usize,
    },
    /// Host: the broker has no JetStream, or rejected a bucket.
    #[error("failed to open the bucket {bucket}; does the NATS server run with JetStream (-js)?")]
    Bucket {
        /// The bucket.
        bucket: String,
        /// The broker's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Host: the broker rejected a subscription.
    #[error("NATS server rejected a subscription")]
    Subscribe(#[from] async_nats::SubscribeError),
}

/// Retries until it succeeds, fails permanently, or the time limit is reached.
async fn first_connection(
    config: &NatsConfig,
    options: ConnectOptions,
) -> Result<Client, NatsError> {
    let addresses = config.servers.addresses();
    let deadline = Instant::now() + OPEN_TIMEOUT;
    let mut delay = MIN_RETRY_DELAY;
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
            ConnectErrorKind::Tls
            | ConnectErrorKind::ServerParse
            | ConnectErrorKind::Dns
            | ConnectErrorKind::TimedOut
            | ConnectErrorKind::Io
            | ConnectErrorKind::MaxReconnects => {}
        }
        // The library reports most failed TLS handshakes as I/O errors.
        if error.kind() == ConnectErrorKind::Tls || has_tls_error(&error) {
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
        tracing::warn!(%servers, %error, "NATS is not reachable yet; retrying");
        sleep(delay).await;
        delay = (delay * 2).min(MAX_RETRY_DELAY);
    }
}

async fn options(
    config: &NatsConfig,
    purpose: &str,
    link: watch::Sender<NatsLinkState>,
) -> Result<ConnectOptions, NatsError> {
    let mut options = ConnectOptions::new()
        .name(format!(
            "{} {purpose} {}",
            config.prefix.as_str(),
            config.node
        ))
        .connection_timeout(CONNECT_TIMEOUT)
        .request_timeout(Some(REQUEST_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            observe(&link, &event);
            std::future::ready(())
        });
    options = match config.servers.login().clone() {
        NatsLogin::None => options,
        NatsLogin::Token(token) => options.token(token),
        NatsLogin::User { name, password } => options.user_and_password(name, password),
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

fn observe(link: &watch::Sender<NatsLinkState>, event: &Event) {
    match event {
        Event::Connected => link.send_modify(|link| link.is_up = true),
        Event::Disconnected | Event::Closed => link.send_modify(|link| {
            link.is_up = false;
            link.losses += 1;
        }),
        // A message was dropped: its receiver detects the gap.
        Event::SlowConsumer(id) => tracing::error!(id, "NATS subscription overflowed"),
        Event::ServerError(error) => tracing::warn!(%error, "NATS server error"),
        Event::ClientError(error) => tracing::debug!(%error, "NATS client error"),
        Event::LameDuckMode | Event::Draining => {}
    }
}

/// Reconnect backoff: from 50 ms, doubling up to [`MAX_RETRY_DELAY`], so that a restarted broker is
/// reached soon and an absent one is not flooded.
fn reconnect_delay(attempt: usize) -> Duration {
    let doublings = u32::try_from(attempt.saturating_sub(1))
        .unwrap_or(u32::MAX)
        .min(10);
    (MIN_RETRY_DELAY * 2_u32.pow(doublings)).min(MAX_RETRY_DELAY)
}

/// Time limit of the first connection, including retries: broker and hub may start together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Timeout of requests to the broker. Registry calls must finish well within ten seconds.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Keepalive: three unanswered pings close a connection, so a hanging broker is left after six
/// seconds.
const PING_INTERVAL: Duration = Duration::from_secs(2);

/// Messages queued per subscription. A circuit's credit allows less than this.
const SUBSCRIPTION_CAPACITY: usize = 32 * 1024;

const MIN_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A frame with its overhead.
const MIN_PAYLOAD: usize = MAX_FRAME_BYTES + 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconnects_back_off_up_to_a_second() {
        let delays: Vec<_> = (1..8).map(|n| reconnect_delay(n).as_millis()).collect();
        assert_eq!(delays, [50, 100, 200, 400, 800, 1000, 1000]);
        assert_eq!(reconnect_delay(usize::MAX), MAX_RETRY_DELAY);
    }

    #[test]
    fn loss_is_counted_even_after_reconnecting() {
        let (sender, link) = watch::channel(NatsLinkState::default());
        observe(&sender, &Event::Connected);
        let before = *link.borrow();
        observe(&sender, &Event::Disconnected);
        observe(&sender, &Event::Connected);
        let after = *link.borrow();
        assert!(before.is_up && after.is_up);
        assert_eq!(after.losses, before.losses + 1);
    }
}
