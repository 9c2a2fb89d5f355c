//! What the kernel says about a server, from `/proc`: its CPU time, its memory, its helpers.
//! A server may do its work in several processes, so all numbers are about its tree, without the
//! processes it runs for us. Not here: starting and stopping servers (`target`).

mod listener;
mod process;
mod tree;

pub(crate) use listener::{owner, port};
pub(crate) use process::{is_workload, reset_peak};
pub(crate) use tree::{Usage, named, workload};
