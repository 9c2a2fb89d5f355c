//! Makes an environment of any place with a shell: an ssh host, a container, a pod, or anything
//! else that a command connects to.
//!
//! A [`Target`](target::Target) names the place. Its command runs `sh` there with the user's
//! configured programs, such as `ssh`. The [`TargetConnector`](connector::TargetConnector) holds a
//! conversation with that shell: the shell finds or receives a program, verifies it, and executes
//! it as the server. The pipe to the shell becomes the link of the session.
//!
//! Invariants: the script uses POSIX `sh` and common tools only; a program runs only if its digest
//! is the one that was pushed; a failed attempt leaves nothing half-installed. Elsewhere: variables
//! and settings (`exec-settings`), the program's side (`exec-server bridge`).

pub mod connector;
mod conversation;
pub mod dist;
pub mod error;
mod shell_command;
pub mod target;

pub use self::shell_command::{PromptMode, TargetPrograms, shell_quoted};
