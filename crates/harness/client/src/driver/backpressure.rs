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
const WINDOWED_LAG_BYTES: u64 = 1 << 30;
/// How often, and how many messages at a time, are read where there is little room.
pub(super) const SLOW_PERIOD: Duration = Duration::from_millis(10);
pub(super) const SLOW_MESSAGES: u32 = 4;

/// Who holds back a process that is not followed fast enough.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Windows {
    /// The server, each by what was acknowledged of it.
    PerProcess,
    /// The connection, all of them.
    Shared,
}

/// Whether there is room for what would be read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Room {
    Enough,
    /// Somebody waits for an answer behind it.
    Little,
    None,
}

impl Room {
    /// Looks how far followers lag behind, and whether anybody waits for an answer.
    pub(super) fn with(windows: Windows, lag: u64, awaited: bool) -> Self {
        let enough = match windows {
            Windows::PerProcess => WINDOWED_LAG_BYTES,
            Windows::Shared if awaited => AWAITED_LAG_BYTES,
            Windows::Shared => LAG_BYTES,
        };
        if lag < enough {
            Self::Enough
        } else if awaited && lag < MAX_LAG_BYTES {
            Self::Little
        } else {
            Self::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_to_although_followers_lag() {
        let with = |lag, awaited| Room::with(Windows::Shared, lag, awaited);
        assert_eq!(with(0, false), Room::Enough);
        assert_eq!(with(LAG_BYTES, false), Room::None);
        assert_eq!(with(LAG_BYTES, true), Room::Enough);
        assert_eq!(with(AWAITED_LAG_BYTES, true), Room::Little);
        assert_eq!(with(MAX_LAG_BYTES, true), Room::None);
    }

    #[test]
    fn with_windows_of_their_own_processes_hold_up_nobody() {
        let with = |lag| Room::with(Windows::PerProcess, lag, false);
        assert_eq!(with(MAX_LAG_BYTES), Room::Enough);
        assert_eq!(with(WINDOWED_LAG_BYTES), Room::None);
    }
}
