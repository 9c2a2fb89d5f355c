//! Which terminal and multiplexer a person sits in, from the variables of their environment alone.
//!
//! [`Terminal::detect`] asks for variables and nothing else: no terminal is queried, no file read, no
//! program started. Invariant: pure, and what it makes of hostile variables is short and printable.
//! Not here: sizes and modes of a terminal, which its descriptor knows.
//!
//! ```
//! use exec_cli::terminal_detection::Terminal;
//!
//! let terminal = Terminal::detect(&|name| match name {
//!     "TERM_PROGRAM" => Some("WezTerm".into()),
//!     "TERM_PROGRAM_VERSION" => Some("20240203".into()),
//!     "TERM" => Some("xterm-256color".into()),
//!     _ => None,
//! });
//! assert_eq!(terminal.token(), "wezterm/20240203");
//! ```

mod detect;
mod kind;
mod multiplexer;
mod remote;
mod terminal;
#[cfg(test)]
mod tests;
mod token;

pub use self::{kind::Kind, multiplexer::Multiplexer, remote::PtyVariables, terminal::Terminal};

/// Gives the value of an environment variable, as `std::env::var_os` does.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<std::ffi::OsString>;
