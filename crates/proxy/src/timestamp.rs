//! Moments as records write them: RFC 3339 in milliseconds, UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Writes `time` as `2026-01-31T23:59:59.999Z`. Times before 1970 are taken for its start.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / DAY, since.as_secs() % DAY);
    let (year, month, day) = date(days);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{:03}Z",
        second / 3600,
        second / 60 % 60,
        second % 60,
        since.subsec_millis()
    )
}

/// Returns the year, month and day that is `days` after 1970-01-01. Years are counted from March,
/// so that the leap day is the last one, and in periods of 400, after which the calendar repeats.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + DAYS_TO_1970;
    let (period, day) = (days / PERIOD, days % PERIOD);
    // Takes out the leap days before `day`: one in 4 years, but not in 100, but in 400.
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // Months from March repeat 31, 30, 31, 30, 31: 153 days in five months.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (period * 400 + year + next, month, day)
}

const DAY: u64 = 86_400;
/// Days in 400 years.
const PERIOD: u64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: u64 = 719_468;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn known_moments_are_written_right() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_001, "2024-02-29T00:00:00.001Z"),
            (1_735_689_599_042, "2024-12-31T23:59:59.042Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut expected = (1970, 1, 1);
        for days in 0..DAY {
            assert_eq!(date(days), expected, "{days}");
            let (year, month, day) = expected;
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let last = match month {
                2 => 28 + u64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (month, day == last) {
                (_, false) => (year, month, day + 1),
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
            };
        }
    }
}
