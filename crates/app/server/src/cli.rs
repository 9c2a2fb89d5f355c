//! The command line of `exec-server`.
//! Invariant: what is wrong with one argument alone, or with the flags of one command together, is
//! found here and ends with status 2; what is wrong with them together with the environment and the
//! file is found by `config`, `remote` and `hub`, and ends with status 1.

mod conventions;
mod hub;
mod line;
mod remote;
#[cfg(test)]
mod tests;

pub use self::{
    hub::{
        Hub, HubCommand, HubEnvironments, HubFlags, ListTokens, MakeToken, RevokeToken, Span,
        SpanParseError, TokenCommand, TokenPlace,
    },
    line::{Cli, Command, Doctor},
    remote::{ChatGptAuth, Forward, IgnoredOptions, Registration, RemoteTransport, Transport},
};
