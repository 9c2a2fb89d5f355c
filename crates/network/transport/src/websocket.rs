//! Our websocket framing: a message is encoded straight into its frame, large messages are
//! fragmented, and limits are checked before memory is allocated.
//!
//! A [`link()`] carries session messages; a [`Socket`](socket::BinarySocket) carries raw binary
//! messages for relays.

mod frame;
mod frame_output;
mod keepalive;
mod message_budget;
mod message_decoder;
mod reader;
pub mod socket;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncWrite};

use self::{
    frame_output::{FrameOutput, SharedControl},
    reader::FrameReader,
    writer::FrameWriter,
};
use crate::link::{BinarySupport, Link, LinkRole};

pub(crate) use self::boxed_with as boxed_link_with;
#[cfg(any(test, fuzzing))]
pub use self::message_decoder::websocket_frame;
pub use self::{
    frame::accept_key,
    message_budget::{MessageBudget, MessageBudgetLimits},
};

/// Options of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Frame type of text messages.
    pub sends: TextFraming,
    /// Maximum size of an incoming message.
    pub max_message_bytes: usize,
    /// Shared memory budget for large incoming messages. `None`: bounded only by the message size.
    pub budget: Option<MessageBudget>,
}

impl LinkOptions {
    /// Returns the options for session links.
    pub fn of(role: LinkRole) -> Self {
        Self {
            sends: TextFraming::Text,
            max_message_bytes: role.max_message_bytes(),
            budget: None,
        }
    }
}

/// Frame type in which a link sends its texts. It accepts either.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TextFraming {
    /// Text frames.
    Text,
    /// Binary frames, for intermediaries that forward messages unread.
    Binary,
}

/// Makes a link of an upgraded connection. `already_read` holds bytes that followed the handshake.
pub fn link<R, W>(input: R, output: W, already_read: &[u8], role: LinkRole, peer: String) -> Link
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let (input, output) = (Box::new(input), Box::new(output));
    boxed_with(
        input,
        output,
        already_read,
        role,
        peer,
        LinkOptions::of(role),
    )
}

/// Makes a link of boxed halves with options.
pub(crate) fn boxed_with(
    input: Box<dyn AsyncRead + Send + Unpin>,
    output: Box<dyn AsyncWrite + Send + Unpin>,
    already_read: &[u8],
    role: LinkRole,
    peer: String,
    options: LinkOptions,
) -> Link {
    let control = Arc::new(SharedControl::default());
    let max_message_bytes = options.max_message_bytes;
    let buffer = BytesMut::from(already_read);
    let reader = FrameReader::new(input, buffer, role, max_message_bytes, Arc::clone(&control));
    Link {
        reader: Box::new(reader.with_budget(options.budget)),
        writer: Box::new(
            FrameWriter::new(FrameOutput::new(output, role, control))
                .with_text_framing(options.sends),
        ),
        peer,
        binary: BinarySupport::Supported,
        max_in_flight: usize::MAX,
        slot: None,
        handshake_started_at: None,
        principal: None,
        path: None,
    }
}
