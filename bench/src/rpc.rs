//! The little of the JSON-RPC wire that measuring needs.
//! Hot paths find what they need by byte search; serde_json serves only what is outside of them.

mod answer;
mod client;
mod event;
mod request;
mod start;

pub(crate) use answer::{Answer, Data, Refusal};
pub(crate) use client::Client;
pub(crate) use event::Event;
pub(crate) use request::Request;
pub(crate) use start::{Start, Stdio};
