//! Results of a run and their renderings: a table, JSON, markdown, and a chart.

pub(crate) mod json;
mod machine;
pub(crate) mod markdown;
mod row;
pub(crate) mod svg;
pub(crate) mod table;
mod unit;

pub(crate) use machine::Machine;
pub(crate) use row::{Cell, Reach, Row};
pub(crate) use unit::Unit;

/// Results of one run.
#[derive(Debug)]
pub(crate) struct Report {
    /// Where it ran.
    pub(crate) machine: Machine,
    /// Whether it was only a smoke run.
    pub(crate) quick: bool,
    /// Titles of the columns, in the order of the cells of each row.
    pub(crate) targets: Vec<String>,
    /// The rows.
    pub(crate) rows: Vec<Row>,
}
