//! `exec-server bench`: what an environment can do, measured from here.
//! Invariant: bounded in time and in bytes, and nothing is left behind there.
//! Not here: comparisons of servers (`bench/`).

mod line;
mod measure;
mod report;
mod samples;

pub use self::line::Bench;
