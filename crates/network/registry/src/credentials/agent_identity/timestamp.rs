//! Moments as assertions name them.

use std::time::SystemTime;

use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// Writes a moment as RFC 3339 in UTC, in whole seconds.
pub(super) fn rfc3339(moment: SystemTime) -> String {
    let written = OffsetDateTime::from(moment).format(SECONDS);
    // Every part that the format names is there.
    written.unwrap_or_default()
}

const SECONDS: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second]Z");

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn moments_are_written_in_whole_seconds_of_utc() {
        let at = |seconds: u64, millis| {
            rfc3339(SystemTime::UNIX_EPOCH + Duration::from_millis(seconds * 1000 + millis))
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_827_696, 999), "2000-02-29T12:34:56Z");
        assert_eq!(at(1_767_323_045, 1), "2026-01-02T03:04:05Z");
    }
}
