//! Opening links to a server: over a websocket, plain or by TLS, over a unix socket, or to a program
//! that is started for it.
//! Invariant: a future that is dropped leaves no connection and no program behind; whatever fails
//! tells whom to blame, and no text repeats a secret.
//! Not here: sessions, coming back after a disconnect (`exec-client`).

mod address;
mod certificate;
mod error;
mod headers;
mod listener_trust;
mod program;
mod proxy;
#[cfg(test)]
mod tests;
mod token;
mod upgrade;
mod websocket;

#[cfg(any(test, fuzzing))]
pub(crate) use self::upgrade::fuzz_answer;
pub use self::{
    address::{Address, AddressError, Host, Scheme},
    certificate::CertificateFault,
    error::{ConnectError, Fault},
    headers::{HeaderError, Headers},
    listener_trust::{ListenerTrust, UntrustedListener},
    program::{Exit, Program},
    proxy::{Proxy, ProxyError},
    token::{BearerToken, TokenError},
    websocket::{CONNECT_TIMEOUT, WebSocket},
};
