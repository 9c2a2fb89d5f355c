//! Moments as signatures spell them: `20150830T123600Z`.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use time::{
    OffsetDateTime, PrimitiveDateTime, format_description::BorrowedFormatItem,
    macros::format_description,
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
        let unix_seconds = since.unwrap_or_default().as_secs().min(LAST_SECOND);
        let moment = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(unix_seconds);
        Self {
            // Every part that the format names is there.
            text: moment.format(BASIC).unwrap_or_default(),
            unix_seconds,
        }
    }

    /// Reads a moment; `None` if there is no such one.
    pub fn parse(text: &str) -> Option<Self> {
        let moment = PrimitiveDateTime::parse(text, BASIC).ok()?.assume_utc();
        let unix_seconds = u64::try_from(moment.unix_timestamp()).ok()?;
        let read = Self::new(SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds));
        // Signatures are over the text: there is one for each moment.
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

const BASIC: &[BorrowedFormatItem<'_>] =
    format_description!("[year][month][day]T[hour][minute][second]Z");
/// 9999-12-31T23:59:59Z: years have four digits.
const LAST_SECOND: u64 = 253_402_300_799;

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
