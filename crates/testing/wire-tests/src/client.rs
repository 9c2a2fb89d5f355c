//! The client's side: connections, events, and the JSON that goes over them.

mod connection;
mod events;
mod values;

pub(crate) use self::{
    connection::{Client, Duplex, Packet},
    events::Events,
    values::{
        TREE, TREE_SIZE, argv_params, decode, decode_text, encode, error_message, merge,
        script_params, with,
    },
};
