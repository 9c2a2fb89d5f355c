//! The envelope: JSON-RPC without the `jsonrpc` member, and its structural limits.
//!
//! Invariant: a [`Message`] comes only from text that is one JSON object, has no duplicate key at
//! any depth, and stays below the limits on values and nesting. Not here: what a method means.

mod binary;
mod envelope;
mod params;
mod structure;

#[cfg(test)]
mod tests;

pub use self::{
    binary::{BINARY_TAG, BinaryError, encode_binary_head, split_binary},
    envelope::{
        ErrorResponse, Message, MessageError, Notification, Request, RequestId, Response, Trace,
        encode_json, encode_string,
    },
    params::{ParamsError, decode_params},
    structure::{StructureError, check_structure},
};
