//! The proxy and the bridge over real sockets of the loopback. The outside is made up: names have
//! the addresses that a test gives them, and every address leads to the loopback.

mod bridge;
mod decisions;
mod http;
mod lifetime;
mod socks;
mod stage;
