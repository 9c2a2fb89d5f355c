//! Why circuits end.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why a circuit ended. The first reason given stays.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Ending {
    /// The harness's socket ended.
    HarnessGone,
    /// The executor's socket ended.
    ExecutorGone,
    /// Another socket or another registration took the executor's place.
    Replaced,
    /// The harness broke a rule of the relay.
    Refused,
    /// The harness took nothing for too long while frames waited for it.
    Stalled,
    /// The harness continued its streams on another socket.
    Moved,
    /// The nodes at the two ends have lost each other, or a frame between them.
    Unreachable,
    /// The hub stops.
    Stopping,
}

impl Ending {
    /// Returns the websocket close code that a harness is given.
    pub const fn close_code(self) -> u16 {
        match self {
            // 1012, service restart: come back, with a new ticket.
            Self::ExecutorGone | Self::Replaced | Self::Unreachable | Self::Stopping => 1012,
            Self::Refused | Self::Stalled => 1008,
            Self::HarnessGone | Self::Moved => 1000,
        }
    }
}

impl Ending {
    /// Returns a short name, for metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HarnessGone => "harness_gone",
            Self::ExecutorGone => "executor_gone",
            Self::Replaced => "replaced",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Moved => "moved",
            Self::Unreachable => "unreachable",
            Self::Stopping => "stopping",
        }
    }

    /// Returns the reason, for people.
    pub const fn text(self) -> &'static str {
        match self {
            Self::HarnessGone => "harness is gone",
            Self::ExecutorGone => "executor is gone",
            Self::Replaced => "executor was replaced",
            Self::Refused => "harness broke the rules of the relay",
            Self::Stalled => "harness took nothing for too long",
            Self::Moved => "streams moved to another connection",
            Self::Unreachable => "connection between nodes was lost",
            Self::Stopping => "hub is stopping",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
