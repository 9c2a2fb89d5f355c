//! Resource usage of a server from `/proc`: CPU time, memory and helpers. A server may use several
//! processes, so all numbers cover its process tree without the processes it runs for us. Starting
//! and stopping servers is in `target`.

mod listener;
mod process;
mod tree;

pub(crate) use listener::{owner, port};
pub(crate) use process::{is_workload, reset_peak};
pub(crate) use tree::{Usage, named, workload};
