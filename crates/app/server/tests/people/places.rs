//! How people reach an environment: this machine's own server, URLs, names, hubs.

mod environments;
mod frame;
mod here;
mod refusals;
