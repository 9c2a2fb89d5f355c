//! Hostile programs in a sandbox: each tries one operation, which must be refused, while its twin
//! outside or in an allowed place must work.
//!
//! The programs are the probes of `exec-hostile`. A twin that needs missing privileges is skipped;
//! the refusal is asserted regardless. The same policies for `fs/*` are in `fs_sandbox`, except for
//! races.

mod bad_policies;
mod command_environment;
mod devices;
mod files;
mod fixture;
mod fs_requests;
mod hidden_paths;
mod kernel;
mod launch;
mod lifetime;
mod mechanisms;
mod metadata;
mod network;
mod other_processes;
mod policies;
mod races;
mod server_socket;
