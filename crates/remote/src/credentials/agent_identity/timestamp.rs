//! Moments as assertions name them.

use std::time::SystemTime;

/// Seconds of a day.
const DAY: u64 = 86_400;

/// Writes a moment as RFC 3339 in UTC, in whole seconds. What is before 1970 counts as 1970.
pub(super) fn rfc3339(moment: SystemTime) -> String {
    let unix = moment
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    let (year, month, day) = date(unix / DAY);
    let second = unix % DAY;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Returns the date of a day since 1970. Years begin in March, so that the leap day is their last.
fn date(days: u64) -> (u64, u64, u64) {
    // 0000-03-01 is 719 468 days before 1970-01-01; 400 years have 146 097 days.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

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
        assert_eq!(at(951_868_800, 0), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_767_323_045, 1), "2026-01-02T03:04:05Z");
        assert_eq!(at(4_107_542_399, 0), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00Z");
        assert_eq!(
            rfc3339(SystemTime::UNIX_EPOCH - Duration::from_secs(5)),
            "1970-01-01T00:00:00Z"
        );
    }
}
