//! Whether what would be read has room.

use std::time::Duration;

/// How far the followers of all processes may lag behind, altogether, before reading stops. Without
/// the grant `acknowledge` the wire has one window for a connection, not one for each process: one
/// that is not followed holds up the others.
const LAG_BYTES: u64 = 1 << 20;
/// How far they may lag behind while somebody waits for an answer, which is behind whatever the
/// link holds.
const AWAITED_LAG_BYTES: u64 = 16 << 20;
/// How far they may lag behind at all. Between the two it is read slowly: the answer is behind what
/// the link holds when it is given, and more than that comes only as fast as it is read.
const MAX_LAG_BYTES: u64 = 256 << 20;
/// How far they may lag behind with the grant: each process has its own window then, and this is as
/// many windows as a session has processes.
const PER_PROCESS_LAG_BYTES: u64 = 1 << 30;
/// How often, and how many messages at a time, are read where there is little room.
pub(super) const THROTTLE_PERIOD: Duration = Duration::from_millis(10);
pub(super) const THROTTLE_MESSAGES: u32 = 4;

/// Who holds back a process that is not followed fast enough.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FlowControlMode {
    /// The server, each by what was acknowledged of it.
    PerProcess,
    /// The connection, all of them.
    PerConnection,
}

/// Whether there is room for what would be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ReadMode {
    Normal,
    /// Somebody waits for an answer behind it.
    Throttled,
    Paused,
}

impl ReadMode {
    /// Looks how far followers lag behind, and whether anybody waits for an answer.
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
