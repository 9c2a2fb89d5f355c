//! Hostile programs in a sandbox: each tries one thing, which must be refused, and its twin outside,
//! or in an allowed place, must work.
//!
//! The programs are the probes of `exec-hostile`. A twin that needs privileges which the tests do not
//! have says nothing, and is passed over; the refusal is asserted all the same.
//! Not here: the same policies for `fs/*` (`fs_sandbox`), but for races.

mod bad_policies;
mod devices;
mod environment;
mod files;
mod ground;
mod hidden;
mod kernel;
mod launch;
mod lifetime;
mod mechanisms;
mod metadata;
mod network;
mod peers;
mod policies;
mod races;
mod requests;
mod socket;
