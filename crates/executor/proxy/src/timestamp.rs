//! Moments as records write them: RFC 3339 in milliseconds, UTC.

use std::time::SystemTime;

use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// Writes `time` as `2026-01-31T23:59:59.999Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let written = OffsetDateTime::from(time).format(RECORD);
    // Every part that the format names is there.
    written.unwrap_or_default()
}

const RECORD: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn known_moments_are_written_right() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_042, "2024-12-31T23:59:59.042Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
        }
    }
}
