//! Both kinds of websocket, over memory, with a clock that is paused.

mod executor;
mod harness;
mod pressure;
mod rig;
