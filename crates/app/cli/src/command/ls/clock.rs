//! A moment as people read it.

use time::{OffsetDateTime, format_description::BorrowedFormatItem, macros::format_description};

/// Returns a time as `2026-11-16 18:47`, in UTC: the clock of a server need not be ours. A time that has no
/// date is `-`.
pub(super) fn minute(millis: i64) -> String {
    let moment = OffsetDateTime::from_unix_timestamp(millis.div_euclid(1000));
    let written = moment.ok().and_then(|moment| moment.format(MINUTE).ok());
    written.unwrap_or_else(|| "-".to_owned())
}

const MINUTE: &[BorrowedFormatItem<'_>] =
    format_description!("[year]-[month]-[day] [hour]:[minute]");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_in_utc() {
        for (millis, text) in [
            (0, "1970-01-01 00:00"),
            (-1, "1969-12-31 23:59"),
            (951_782_400_000, "2000-02-29 00:00"),
            (1_794_854_820_000, "2026-11-16 18:47"),
            (i64::MAX, "-"),
        ] {
            assert_eq!(minute(millis), text);
        }
    }
}
