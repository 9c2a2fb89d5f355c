//! Wall-clock time, as nodes share it.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since 1970-01-01T00:00:00Z.
///
/// Only the edge of the hub reads the clock; everything deeper is handed a `Timestamp`.
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

    /// Takes whole seconds since 1970. What does not fit counts as the end of time.
    pub const fn from_seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }

    /// Takes milliseconds since 1970.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Whole seconds since 1970, rounded down.
    pub const fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds since 1970.
    pub const fn millis(self) -> u64 {
        self.0
    }

    /// The time `later` from now, to the millisecond.
    #[must_use]
    pub fn plus(self, later: Duration) -> Self {
        let millis = u64::try_from(later.as_millis()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long ago `earlier` was; nothing when the clocks disagree about which came first.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Reads `2026-01-02T03:04:05Z`, with or without a fraction, in any offset. `None`: it is no
    /// such text, or before 1970.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let (date, time) = text.split_once(['T', 't', ' '])?;
        let [year, month, day] = numbers(date, '-')?;
        let offset_at = time.find(['Z', 'z', '+', '-'])?;
        let (time, offset) = time.split_at(offset_at);
        let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
        let [hour, minute, second] = numbers(time, ':')?;
        let month_is_known = (1..=12).contains(&month) && (1970..=9999).contains(&year);
        if !month_is_known || hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let days = days_before(year, month).checked_add(day.checked_sub(1)?)?;
        if civil(days) != (year, month, day) {
            return None;
        }
        let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
        let seconds = match offset.split_at_checked(1)? {
            ("Z" | "z", "") => seconds,
            ("+", ahead) => seconds.checked_sub(offset_seconds(ahead)?)?,
            ("-", behind) => seconds + offset_seconds(behind)?,
            _ => return None,
        };
        Some(Self(seconds * 1000 + milliseconds(fraction)?))
    }

    /// `2026-01-02T03:04:05.678Z`.
    pub fn rfc3339(self) -> String {
        let (seconds, millis) = (self.seconds(), self.0 % 1000);
        let (day, second) = (seconds / 86_400, seconds % 86_400);
        let (year, month, day) = civil(day);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }
}

impl From<SystemTime> for Timestamp {
    /// Rounds down; a clock that stands before 1970 counts as 1970.
    fn from(time: SystemTime) -> Self {
        let since_epoch = time
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// The proleptic Gregorian date of a day counted from 1970-01-01: (year, month, day of month).
///
/// Years are taken to begin in March, so that the leap day is the last of its year.
const fn civil(day: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_IN_ERA: u64 = 146_097;
    let day = day.saturating_add(DAYS_TO_1970);
    let (era, of_era) = (day / DAYS_IN_ERA, day % DAYS_IN_ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    let year = year_of_era + era * 400;
    (
        if month <= 2 { year + 1 } else { year },
        month,
        day_of_month,
    )
}

/// The days from 1970-01-01 to the first of a month. The inverse of [`civil`].
const fn days_before(year: u64, month: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let march_month = (month + 9) % 12;
    let of_year = (153 * march_month + 2) / 5;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year - 719_468
}

/// Three numbers of digits only.
fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let mut parts = text.split(between).map(digits);
    let three = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(three)
}

fn digits(text: &str) -> Option<u64> {
    let short = (2..=4).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    short.then(|| text.parse().ok())?
}

fn offset_seconds(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours <= 23 && minutes <= 59).then_some(hours * 3600 + minutes * 60)
}

fn milliseconds(fraction: &str) -> Option<u64> {
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    format!("{fraction:0<3}").get(..3)?.parse().ok()
}

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
    fn what_is_no_date_is_refused() {
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
        assert!(!end.rfc3339().is_empty());
    }
}
