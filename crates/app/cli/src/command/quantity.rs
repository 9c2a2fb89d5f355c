//! Durations and byte sizes as command-line arguments.

use std::{str::FromStr, time::Duration};

use exec_settings::settings_source::duration;

/// Positive duration, such as `90`, `1.5s`, `200ms`, `10m`, `2h`, `1d` or `1w`.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct DurationArg(pub Duration);

impl DurationArg {
    /// Returns the duration in milliseconds.
    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl FromStr for DurationArg {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = split(text);
        let unit = if unit.is_empty() { "s" } else { unit };
        let number: Option<f64> = number.parse().ok();
        let span = number.and_then(|number| duration(number, unit));
        // The wire uses milliseconds.
        span.filter(|span| *span >= Duration::from_millis(1))
            .map(Self)
            .ok_or_else(|| QuantityError::Span(text.to_owned()))
    }
}

/// Positive number of bytes, such as `4096`, `512M` or `2G`; units are powers of 1024.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct ByteSizeArg(pub u64);

impl FromStr for ByteSizeArg {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || QuantityError::Size(text.to_owned());
        let (number, unit) = split(text);
        let shift = match unit.to_ascii_uppercase().as_str() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        match number.checked_mul(1 << shift) {
            Some(bytes @ 1..) => Ok(Self(bytes)),
            Some(0) | None => Err(wrong()),
        }
    }
}

fn split(text: &str) -> (&str, &str) {
    let unit = text.find(|sign: char| sign.is_ascii_alphabetic());
    text.split_at(unit.unwrap_or(text.len()))
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityError {
    /// Caller: invalid duration.
    #[error("invalid duration `{0}`: expected a number and ms, s, m, h, d or w, such as 90s")]
    Span(String),
    /// Caller: invalid size.
    #[error("invalid size `{0}`: expected a number, and K, M, G or T, such as 512M")]
    Size(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_and_are_positive() {
        for (text, millis) in [
            ("90", 90_000),
            ("1.5s", 1500),
            ("200ms", 200),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("1w", 604_800_000),
        ] {
            assert_eq!(
                text.parse::<DurationArg>().map(DurationArg::millis),
                Ok(millis),
                "{text}"
            );
        }
        for wrong in [
            "", "s", "0", "-1", "1x", "1s2", "inf", "nan", "1e300d", "0.1ms",
        ] {
            assert!(wrong.parse::<DurationArg>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("1", 1),
            ("4k", 4096),
            ("512M", 512 << 20),
            ("2GiB", 2 << 30),
        ] {
            assert_eq!(text.parse(), Ok(ByteSizeArg(bytes)), "{text}");
        }
        for wrong in ["", "0", "M", "1.5M", "-1", "1X", "99999999999T"] {
            assert!(wrong.parse::<ByteSizeArg>().is_err(), "{wrong}");
        }
    }
}
