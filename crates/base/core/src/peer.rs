//! One end of a connection: which messages are allowed when, and which answer belongs to whom.
//!
//! Not here: decoding (`exec-wire`), what a method does, in which order requests run (`order`).

mod calls;
mod gate;

pub use self::{
    calls::{Answer, Calls, CallsError},
    gate::{Gate, GateError, Input},
};
