//! Makes an environment of any place with a shell: an ssh host, a container, a pod, or whatever a
//! program leads to.
//!
//! A [`Target`](target::Target) says where. Its [command](shell_command) runs `sh` there with the
//! programs that people have configured. The [`TargetConnector`](connector::TargetConnector) holds
//! a [conversation](conversation) with that shell: it finds or receives a program, verifies it, and
//! becomes it. The link of the session is the same pipe.
//!
//! Invariants: only POSIX `sh` is expected there; a program runs only if its digest is the one that
//! was pushed; a failed attempt leaves nothing half-installed. Elsewhere: variables and settings
//! (`exec-settings`), the program's side (`exec-server bridge`).

pub mod connector;
mod conversation;
pub mod dist;
pub mod error;
mod shell_command;
pub mod target;

pub use self::shell_command::TargetPrograms;
