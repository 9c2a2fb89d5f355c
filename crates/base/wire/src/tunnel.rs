//! Tunnels: byte streams to and from the network of the host (extension `tunnels`), and the ports
//! that listen there.

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    base64_bytes::Base64Bytes,
    id::{ListenId, ProcessId, TunnelId},
    message::{ParamsError, RpcNotification, decode_params},
    method::notification,
    outgoing_message::OutgoingMessage,
    sandbox::SandboxPolicy,
};

/// A notification about a tunnel, with its data in place.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum TunnelMessage {
    /// `tunnel/incoming`.
    Incoming(IncomingTunnel),
    /// `tunnel/data`: an event with bytes.
    Data {
        /// The tunnel.
        tunnel_id: TunnelId,
        /// Number of the event.
        seq: u64,
        /// The bytes.
        chunk: Bytes,
    },
    /// `tunnel/acknowledge`.
    Acknowledge(TunnelCursor),
    /// `tunnel/shutdown`.
    Shutdown(TunnelCursor),
    /// `tunnel/close`.
    Close(CloseTunnel),
}

impl TunnelMessage {
    /// Decodes a notification. Returns `None` if it is not about a tunnel.
    pub fn decode(message: &RpcNotification<'_>) -> Option<Result<Self, ParamsError>> {
        Some(match &*message.method {
            notification::TUNNEL_INCOMING => decode_params(message.params).map(Self::Incoming),
            notification::TUNNEL_DATA => decode_data(message),
            notification::TUNNEL_ACKNOWLEDGE => {
                decode_params(message.params).map(Self::Acknowledge)
            }
            notification::TUNNEL_SHUTDOWN => decode_params(message.params).map(Self::Shutdown),
            notification::TUNNEL_CLOSE => decode_params(message.params).map(Self::Close),
            _ => return None,
        })
    }

    /// Encodes the notification.
    pub fn encode(self) -> OutgoingMessage {
        match self {
            Self::Incoming(incoming) => {
                OutgoingMessage::notification(notification::TUNNEL_INCOMING, &incoming)
            }
            Self::Data {
                tunnel_id,
                seq,
                chunk,
            } => {
                let data = TunnelData {
                    tunnel_id,
                    seq,
                    chunk: None,
                };
                OutgoingMessage::notification(notification::TUNNEL_DATA, &data)
                    .with_data("chunk", chunk)
            }
            Self::Acknowledge(cursor) => {
                OutgoingMessage::notification(notification::TUNNEL_ACKNOWLEDGE, &cursor)
            }
            Self::Shutdown(cursor) => {
                OutgoingMessage::notification(notification::TUNNEL_SHUTDOWN, &cursor)
            }
            Self::Close(close) => OutgoingMessage::notification(notification::TUNNEL_CLOSE, &close),
        }
    }
}

/// Takes the bytes from the JSON message or from the raw data beside it.
fn decode_data(message: &RpcNotification<'_>) -> Result<TunnelMessage, ParamsError> {
    let TunnelData {
        tunnel_id,
        seq,
        chunk,
    } = decode_params(message.params)?;
    let chunk = match (chunk, message.data.clone()) {
        (Some(Base64Bytes(chunk)), None) | (None, Some(chunk)) => chunk,
        (None, None) => return Err(ParamsError("missing field `chunk`".to_owned())),
        (Some(_), Some(_)) => {
            let text = "chunk: expected either base64 or raw data, not both";
            return Err(ParamsError(text.to_owned()));
        }
    };
    Ok(TunnelMessage::Data {
        tunnel_id,
        seq,
        chunk,
    })
}

/// `tunnel/open`: connects to a TCP port.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OpenTunnel {
    /// Id that the client chose. Repeating the request of an open tunnel has no effect.
    pub tunnel_id: TunnelId,
    /// Name or address, resolved on the host. Absent: its loopback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<TunnelHost>,
    /// TCP port.
    pub port: u16,
    /// Connects in the network of this process of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// Policy that must allow the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// `tunnel/listen`: accepts connections on a TCP port of the host.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListenTunnel {
    /// Id that the client chose. Repeating the request of an open listener has no effect.
    pub listen_id: ListenId,
    /// Address to listen on. Absent: the loopback of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<TunnelHost>,
    /// TCP port; 0 lets the host choose.
    pub port: u16,
    /// Listens in the network of this process of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// Policy that must allow the listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Box<SandboxPolicy>>,
}

/// Response to `tunnel/listen`.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListenResult {
    /// Port of the listener.
    pub port: u16,
}

/// `tunnel/incoming`: the server accepted a connection. The server chose the id of the tunnel.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct IncomingTunnel {
    /// The listener.
    pub listen_id: ListenId,
    /// The new tunnel.
    pub tunnel_id: TunnelId,
}

/// `tunnel/data`, in both directions: bytes of a tunnel.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TunnelData {
    /// The tunnel.
    pub tunnel_id: TunnelId,
    /// Number of the event among those that this end has sent for the tunnel, from 1.
    pub seq: u64,
    /// The bytes. Absent if they are sent as raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Base64Bytes>,
}

/// `tunnel/acknowledge` and `tunnel/shutdown`, in both directions: the sender has delivered the
/// events up to `seq`, or ends its direction with the event `seq`, which has the number after its
/// last data.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct TunnelCursor {
    /// The tunnel.
    pub tunnel_id: TunnelId,
    /// Number of the event.
    pub seq: u64,
}

/// `tunnel/close`, in both directions: the tunnel has ended, and what was not delivered is lost.
/// From a client it also closes a listener with that id.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct CloseTunnel {
    /// The tunnel or listener.
    pub tunnel_id: TunnelId,
    /// Why, if it did not end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `ports/list`: lists the TCP ports that listen on the host.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListPorts {
    /// Lists those in the network of this process of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
}

/// Response to `ports/list`.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct PortList {
    /// The ports, by number and address.
    pub ports: Vec<ListeningPort>,
}

/// A TCP port that listens.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ListeningPort {
    /// Port number.
    pub port: u16,
    /// Address that it is bound to.
    pub address: String,
    /// Process of the session that has it open, itself or in its tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_id: Option<ProcessId>,
    /// OS pid of the program that has it open, if the server may know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_pid: Option<u32>,
    /// Name of that program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
}

/// Host of a tunnel: a name or an address, of 1 to [`TunnelHost::MAX_BYTES`] bytes without spaces
/// and control characters.
#[derive(Clone, Debug, Eq, Hash, PartialEq, Serialize)]
pub struct TunnelHost(Box<str>);

impl TunnelHost {
    /// Longest host name of the domain name system.
    pub const MAX_BYTES: usize = 253;

    /// Checks a host.
    pub fn new(host: &str) -> Result<Self, TunnelHostError> {
        let is_valid = |sign: char| !sign.is_whitespace() && !sign.is_control();
        match !host.is_empty() && host.len() <= Self::MAX_BYTES && host.chars().all(is_valid) {
            true => Ok(Self(host.into())),
            false => Err(TunnelHostError),
        }
    }

    /// Returns the host as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for TunnelHost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let host = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&host).map_err(de::Error::custom)
    }
}

/// Caller: not a host name or address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("host must be a name or an address of 1 to 253 bytes without spaces")]
pub struct TunnelHostError;
