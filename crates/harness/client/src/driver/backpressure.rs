//! Backpressure on the connection: whether to read more, given the lag of the followers.

use std::time::Duration;

/// Maximum total lag of the followers of all processes before reading pauses. Without the extension
/// `acknowledge` there is one flow-control window per connection, so a process that is not followed
/// blocks the others.
const LAG_BYTES: u64 = 1 << 20;
/// Maximum lag while a caller waits for a response, which arrives after the data in the link.
const AWAITED_LAG_BYTES: u64 = 16 << 20;
/// Absolute maximum lag. Above the limit before it, reading is throttled: the response arrives
/// after the data that was in the link when it was sent, and the server can only send as fast as
/// the client reads.
const MAX_LAG_BYTES: u64 = 256 << 20;
/// Maximum lag with the extension: each process has its own window, and this is the sum of the
/// windows of all processes of a session.
const PER_PROCESS_LAG_BYTES: u64 = 1 << 30;
/// Interval of throttled reading, and number of messages per interval.
pub(super) const THROTTLE_PERIOD: Duration = Duration::from_millis(10);
pub(super) const THROTTLE_MESSAGES: u32 = 4;

/// The party that pauses a process with slow followers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FlowControlMode {
    /// The server, for each process by its acknowledgements.
    PerProcess,
    /// The connection, for all processes at once.
    PerConnection,
}

/// How fast to read from the connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadMode {
    Normal,
    /// Reads slowly, because a caller waits for a response behind the data.
    Throttled,
    Paused,
}

impl ReadMode {
    /// Chooses the mode from the lag and from whether a caller waits for a response.
    pub(super) fn for_lag(flow_control: FlowControlMode, lag: u64, awaited: bool) -> Self {
        let limit = match flow_control {
            FlowControlMode::PerProcess => PER_PROCESS_LAG_BYTES,
            FlowControlMode::PerConnection if awaited => AWAITED_LAG_BYTES,
            FlowControlMode::PerConnection => LAG_BYTES,
        };
        if lag < limit {
            Self::Normal
        } else if awaited && lag < MAX_LAG_BYTES {
            Self::Throttled
        } else {
            Self::Paused
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awaited_response_raises_the_lag_limit() {
        let mode = |lag, awaited| ReadMode::for_lag(FlowControlMode::PerConnection, lag, awaited);
        assert_eq!(mode(0, false), ReadMode::Normal);
        assert_eq!(mode(LAG_BYTES, false), ReadMode::Paused);
        assert_eq!(mode(LAG_BYTES, true), ReadMode::Normal);
        assert_eq!(mode(AWAITED_LAG_BYTES, true), ReadMode::Throttled);
        assert_eq!(mode(MAX_LAG_BYTES, true), ReadMode::Paused);
    }

    #[test]
    fn per_process_windows_allow_a_larger_lag() {
        let mode = |lag| ReadMode::for_lag(FlowControlMode::PerProcess, lag, false);
        assert_eq!(mode(MAX_LAG_BYTES), ReadMode::Normal);
        assert_eq!(mode(PER_PROCESS_LAG_BYTES), ReadMode::Paused);
    }
}
