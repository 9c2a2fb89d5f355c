//! The managed network of a process: the proxy it is led to, who decides, and what is out of reach.
//!
//! Programs inside are shell functions that speak to the proxy in plain bytes. Whatever is reached is
//! a server of the test's on the loopback; where a decision would lead beyond, the server under test
//! lives in a network of its own, which ends nowhere.
//! Not here: sandboxes without a managed network (`sandbox`).

mod advisory;
mod asking;
mod bad_settings;
mod bridged;
mod datagrams;
mod enforced;
mod local;
mod profiles;
mod records;
mod stage;
mod variables;
