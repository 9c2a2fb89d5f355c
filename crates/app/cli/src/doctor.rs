//! `exec-server doctor`: what this machine can enforce, what blocks the rest, and how to unblock it.
//!
//! What is found is found by trying, by the code that serves with it (`exec-sandbox`); what is advised
//! is a pure function of what was found. Not here: printing.

mod advice;
mod report;
mod server;
#[cfg(test)]
mod tests;
mod text;

pub use self::{
    advice::{Advice, advice},
    report::{ExamineError, Report, examine},
    server::LocalServer,
};
