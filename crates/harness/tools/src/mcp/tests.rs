//! The tools on this machine, without a client; and the door, without a socket.

mod commands;
mod cut;
mod door;
mod faulty;
mod files;
mod listing;
mod patches;
mod paths;
mod received;
mod sizes;
mod stage;
mod together;
