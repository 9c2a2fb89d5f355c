//! `exec-server mcp`: the tools for agents, over pipes or over HTTP.

mod http;
mod line;
mod scene;

pub use self::line::Mcp;
