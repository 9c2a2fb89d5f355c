//! Point in time as a command-line argument.

use std::{
    str::FromStr,
    time::{SystemTime, UNIX_EPOCH},
};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use crate::command::quantity::DurationArg;

/// Point in time: a span before now, such as `10m`, or an RFC 3339 time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SinceArg {
    /// This long before now.
    Ago(DurationArg),
    /// Milliseconds since the Unix epoch.
    At(u64),
}

impl SinceArg {
    /// Returns milliseconds since the Unix epoch.
    pub(crate) fn unix_ms(self) -> u64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = u64::try_from(now.unwrap_or_default().as_millis()).unwrap_or(u64::MAX);
        match self {
            Self::Ago(span) => now.saturating_sub(span.millis()),
            Self::At(unix_ms) => unix_ms,
        }
    }
}

impl FromStr for SinceArg {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(span) = text.parse() {
            return Ok(Self::Ago(span));
        }
        let time = OffsetDateTime::parse(text, &Rfc3339);
        let time = time.map_err(|_| SinceError(text.to_owned()))?;
        let millis = time.unix_timestamp_nanos() / 1_000_000;
        Ok(Self::At(u64::try_from(millis).unwrap_or(0)))
    }
}

/// Caller: the text is neither a span nor a time.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("invalid time `{0}`: use a span before now, such as 10m, or 2026-01-31T12:00:00Z")]
pub struct SinceError(String);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn spans_and_times_are_parsed() {
        let ten = DurationArg(Duration::from_secs(600));
        assert_eq!("10m".parse(), Ok(SinceArg::Ago(ten)));
        for text in ["1970-01-01T01:00:01.5+01:00", "1970-01-01T00:00:01.5Z"] {
            assert_eq!(text.parse(), Ok(SinceArg::At(1500)), "{text}");
        }
        for wrong in ["", "yesterday", "2026-01-31", "-10m"] {
            assert!(wrong.parse::<SinceArg>().is_err(), "{wrong}");
        }
    }
}
