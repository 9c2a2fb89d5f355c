//! The proxy's HTTP side: CONNECT, and requests in plain HTTP.
//!
//! Invariant: of what a client sends after the head of a request in plain HTTP, only the body
//! reaches the server. A second request behind it could name another host. Not here: keeping
//! connections open; each one carries one request.

mod answer;
mod chunked;
mod exchange;
mod field;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod head;
mod relay;
mod request;
mod response;
mod serve;

pub(crate) use self::serve::{serve, turn_away};
