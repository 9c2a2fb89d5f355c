//! Subset of the JSON-RPC wire that the measures need. Hot paths find fields by byte search;
//! serde_json is used only outside of them.

mod answer;
mod client;
mod event;
mod request;

pub(crate) use answer::{Answer, Data, Refusal};
pub(crate) use client::Client;
pub(crate) use event::Event;
pub(crate) use request::{Request, Start, Stdio};
