//! Websocket framing, ours: a message is encoded straight into its frame, large ones are fragmented
//! on the way out, and limits hold before memory is taken on the way in.
//!
//! Two faces: a [`link()`] carries the messages of a session, a [`Socket`](socket::Socket) raw binary
//! ones, for relays.

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
use crate::link::{Binary, Link, Role};

pub(crate) use self::boxed_with as boxed_link_with;
#[cfg(any(test, fuzzing))]
pub use self::message_decoder::websocket_frame;
pub use self::{
    frame::accept_key,
    message_budget::{MessageBudget, MessageBudgetLimits},
};

/// What a link carries.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// How texts are sent.
    pub sends: Sends,
    /// Longest message that is taken in.
    pub max_message_bytes: usize,
    /// Where memory for large messages comes from until they have arrived. `None`: it is not bounded
    /// but by the length of a message.
    pub budget: Option<MessageBudget>,
}

impl LinkOptions {
    /// Returns what links of sessions use.
    pub fn of(role: Role) -> Self {
        Self {
            sends: Sends::Text,
            max_message_bytes: role.max_message_bytes(),
            budget: None,
        }
    }
}

/// What the texts of a link are sent as. What is taken in may be either.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Sends {
    /// Text messages.
    Text,
    /// Binary messages, for who passes on what it has not read.
    Binary,
}

/// Makes a link of an upgraded connection. `already_read` came with the handshake.
pub fn link<R, W>(input: R, output: W, already_read: &[u8], role: Role, peer: String) -> Link
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

/// The same of halves that are in boxes already, with what it carries.
pub(crate) fn boxed_with(
    input: Box<dyn AsyncRead + Send + Unpin>,
    output: Box<dyn AsyncWrite + Send + Unpin>,
    already_read: &[u8],
    role: Role,
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
        binary: Binary::Possible,
        most_unanswered: usize::MAX,
        slot: None,
        handshake_began: None,
        principal: None,
        path: None,
    }
}
