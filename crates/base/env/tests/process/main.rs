//! Helpers that work with any process, on scripted processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod output;
