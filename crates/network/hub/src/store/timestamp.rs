//! Wall-clock time, shared between nodes.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use time::{
    OffsetDateTime,
    format_description::{BorrowedFormatItem, well_known::Rfc3339},
    macros::format_description,
};

/// A point in time: milliseconds since 1970-01-01T00:00:00Z.
///
/// Only the outer layers read the clock; inner ones receive a `Timestamp`.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Reads the system clock.
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Converts whole seconds since 1970, saturating.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Converts milliseconds since 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Returns whole seconds since 1970, rounded down.
    pub const fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// Returns milliseconds since 1970.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// Adds a duration, with millisecond resolution.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        let millis = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// Subtracts a duration, with millisecond resolution, down to 1970.
    #[must_use]
    pub fn minus(self, earlier: Duration) -> Self {
        let millis = u64::try_from(earlier.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(millis))
    }

    /// Returns the time elapsed since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Parses `2026-01-02T03:04:05Z`, with or without a fraction, in any offset. Returns `None` if
    /// it is invalid or before 1970.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
        let millis = moment.unix_timestamp_nanos().div_euclid(1_000_000);
        u64::try_from(millis).ok().map(Self)
    }

    /// Formats as `2026-01-02T03:04:05.678Z`. Times after the year 9999 are clamped.
    pub fn rfc3339(self) -> String {
        let millis = Duration::from_millis(self.0.min(LAST_MILLI));
        let written = (OffsetDateTime::UNIX_EPOCH + millis).format(MILLIS);
        // The value provides every component of the format, so formatting cannot fail.
        written.unwrap_or_default()
    }
}

impl From<SystemTime> for Timestamp {
    /// Rounds down. Times before 1970 count as 1970.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

const MILLIS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
/// 9999-12-31T23:59:59.999Z: years have four digits.
const LAST_MILLI: u64 = 253_402_300_799_999;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_rfc_3339() {
        let known = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_200_001, "2024-03-01T00:00:00.001Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ];
        for (millis, text) in known {
            assert_eq!(Timestamp::from_millis(millis).rfc3339(), text);
            let read = Timestamp::parse_rfc3339(text);
            assert_eq!(read, Some(Timestamp::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn offsets_and_fractions_are_read() {
        let at = Some(Timestamp::from_millis(1_767_323_045_600));
        for text in [
            "2026-01-02T03:04:05.6Z",
            "2026-01-02t03:04:05.6009z",
            "2026-01-02T05:34:05.600+02:30",
            "2026-01-01 22:04:05.6-05:00",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(text), at, "{text}");
        }
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for text in [
            "",
            "2026-01-02",
            "2026-01-02T03:04:05",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-01-00T00:00:00Z",
            "1969-12-31T23:59:59Z",
            "1970-01-01T00:00:00+01:00",
            "2026-01-02T24:00:00Z",
            "2026-01-02T03:04:05Zz",
            "2026-01-02T03:04:05+0230",
            "+026-01-02T03:04:05Z",
            "2026-01-02T03:04:05.-6Z",
            "2026-01-02T03:04:05.6éZ",
        ] {
            assert_eq!(Timestamp::parse_rfc3339(text), None, "{text}");
        }
    }

    #[test]
    fn arithmetic_never_wraps() {
        let end = Timestamp::from_seconds(u64::MAX);
        assert_eq!(end.plus(Duration::MAX).millis(), u64::MAX);
        assert_eq!(Timestamp::default().since(end), Duration::ZERO);
        let second = Timestamp::from_seconds(1);
        assert_eq!(second.minus(Duration::from_millis(1)).millis(), 999);
        assert_eq!(second.minus(Duration::MAX), Timestamp::default());
        assert_eq!(end.rfc3339(), "9999-12-31T23:59:59.999Z");
    }
}
