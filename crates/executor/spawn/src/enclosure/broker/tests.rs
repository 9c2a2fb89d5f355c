//! The broker, on the kernel that runs the tests: a thread is enclosed, as a command would be, and
//! another answers it.

mod compare;
pub(super) mod enclosed;
mod hostile;
mod paths;
mod refused;
mod same;
mod sockets;
