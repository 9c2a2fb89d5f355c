//! Moments as signatures spell them: `20150830T123600Z`.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

/// A moment, to the second.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Timestamp {
    text: String,
    unix_seconds: u64,
}

impl Timestamp {
    /// Takes a moment. What lies before 1970, or after the year 9999, counts as the nearest there is.
    pub fn new(at: SystemTime) -> Self {
        let since = at.duration_since(SystemTime::UNIX_EPOCH);
        let seconds = since.unwrap_or_default().as_secs().min(LAST_SECOND);
        let (days, rest) = (seconds / DAY, seconds % DAY);
        let (year, month, day) = civil(days);
        let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
        Self {
            text: format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z"),
            unix_seconds: seconds,
        }
    }

    /// Reads a moment; `None` if there is no such one.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != TEXT_BYTES || bytes[8] != b'T' || bytes[15] != b'Z' {
            return None;
        }
        let number = |from: usize, to: usize| {
            let digits = &bytes[from..to];
            let all = digits.iter().all(u8::is_ascii_digit);
            all.then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
        };
        let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
        let (hour, minute, second) = (number(9, 11)?, number(11, 13)?, number(13, 15)?);
        if hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        let days = days_since_epoch(year, month, day)?;
        let unix_seconds = days * DAY + hour * 3600 + minute * 60 + second;
        // A day that its month does not have comes back as another one.
        let read = Self::new(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds));
        (read.text == text).then_some(read)
    }

    /// Returns the day, `20150830`.
    pub fn date(&self) -> &str {
        &self.text[..8]
    }

    /// Returns the whole text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns how far another moment is away, before or after.
    pub fn distance(&self, other: &Self) -> Duration {
        Duration::from_secs(self.unix_seconds.abs_diff(other.unix_seconds))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

const TEXT_BYTES: usize = "20150830T123600Z".len();
const DAY: u64 = 86_400;
/// 9999-12-31T23:59:59Z: years have four digits.
const LAST_SECOND: u64 = 253_402_300_799;
/// Days of 400 years of the Gregorian calendar, and of the years 0000-03-01 to 1970-01-01.
const ERA_DAYS: u64 = 146_097;
const EPOCH_DAYS: u64 = 719_468;

/// Year, month and day of a day since 1970. Years begin in March here, so that a leap day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH_DAYS;
    let (era, day) = (days / ERA_DAYS, days % ERA_DAYS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = era * 400 + year + u64::from(month <= 2);
    (year, month, day_of_month)
}

/// The other way round; `None` before 1970, or for a month or day that no year has.
fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let (year, march_month) = if month <= 2 {
        (year.checked_sub(1)?, month + 9)
    } else {
        (year, month - 3)
    };
    let (era, year) = (year / 400, year % 400);
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let day_of_era = year * 365 + year / 4 - year / 100 + day_of_year;
    (era * ERA_DAYS + day_of_era).checked_sub(EPOCH_DAYS)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::new(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn moments_are_spelled_as_the_calendar_has_them() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (4_107_542_400, "21000301T000000Z"),
            (LAST_SECOND, "99991231T235959Z"),
            (u64::MAX >> 2, "99991231T235959Z"),
        ] {
            assert_eq!(at(seconds).as_str(), text);
        }
        assert_eq!(at(1_440_938_160).date(), "20150830");
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "20150830",
            "20150830T123600",
            "2015-08-30T12:36:00Z",
            "20150830t123600z",
            "20150230T000000Z",
            "21000229T000000Z",
            "20151301T000000Z",
            "20150001T000000Z",
            "20150830T240000Z",
            "20150830T126000Z",
            "20150830T123660Z",
            "19691231T235959Z",
            "00000101T000000Z",
            "+0150830T123600Z",
            "20150830T1236é0Z",
        ] {
            assert_eq!(Timestamp::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(seconds in 0..=LAST_SECOND) {
            let written = at(seconds);
            prop_assert_eq!(Timestamp::parse(written.as_str()), Some(written));
        }

        #[test]
        fn no_text_panics(text in ".{0,20}") {
            Timestamp::parse(&text);
        }
    }
}
