//! The measures: one file per group of rows. Each takes all targets and returns finished rows.
//! Invariant: a target that fails spoils its own cells and no others.

mod client;
mod echo;
mod files;
mod flood;
mod hub;
mod in_flight;
mod memory;
mod output;
mod people;
mod sandbox;
mod spawn;
mod stalled;
mod startup;
mod terminal;
mod tools;

use crate::plan::Plan;
use crate::report::{Cell, Row};
use crate::target::Target;

pub(crate) use output::Transfer;

/// A group of rows that are measured together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Measures it.
    pub(crate) run: fn(&Plan, &[Target]) -> Vec<Row>,
}

/// The extension that sends bytes as they are, in binary messages.
const BINARY: &str = "binaryData";

/// All groups, in the order of the table.
pub(crate) const GROUPS: [Group; 22] = [
    Group {
        name: "spawn",
        run: spawn::run,
    },
    Group {
        name: "inflight",
        run: in_flight::run,
    },
    Group {
        name: "echo",
        run: echo::run,
    },
    Group {
        name: "output",
        run: output::run,
    },
    Group {
        name: "terminal",
        run: terminal::run,
    },
    Group {
        name: "memory",
        run: memory::run,
    },
    Group {
        name: "stalled",
        run: stalled::run,
    },
    Group {
        name: "flood",
        run: flood::run,
    },
    Group {
        name: "startup",
        run: startup::run,
    },
    Group {
        name: "fs-calls",
        run: files::calls,
    },
    Group {
        name: "fs-bulk",
        run: files::bulk,
    },
    Group {
        name: "fs-walk",
        run: files::walk,
    },
    Group {
        name: "fs-peak",
        run: files::peak,
    },
    Group {
        name: "fs-watch",
        run: files::watch,
    },
    Group {
        name: "sandbox",
        run: sandbox::run,
    },
    Group {
        name: "client",
        run: client::run,
    },
    Group {
        name: "tools",
        run: tools::run,
    },
    Group {
        name: "people",
        run: people::run,
    },
    Group {
        name: "relay",
        run: hub::relay,
    },
    Group {
        name: "hub-frames",
        run: hub::frames,
    },
    Group {
        name: "hub-crowd",
        run: hub::crowd,
    },
    Group {
        name: "hub-nodes",
        run: hub::nodes,
    },
];

/// Returns the difference between two measures.
fn difference((more, less): (&Cell, &Cell)) -> Cell {
    match (more.value(), less.value()) {
        (Some(more), Some(less)) => Cell::Value((more - less).max(0.0)),
        (None, _) => more.clone(),
        (_, None) => less.clone(),
    }
}
