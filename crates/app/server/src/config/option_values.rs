//! Types of option values, parsed in the same way from every source.

use std::{
    net::SocketAddr,
    num::{NonZeroUsize, ParseIntError},
    str::FromStr,
};

#[cfg(feature = "executor")]
use crate::{
    config::{ServerSettings, VariableLookup},
    telemetry::parse_log_filter,
};

/// Concurrent requests per connection.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum ConcurrentRequests {
    /// As many as ordering allows.
    #[default]
    Unlimited,
    /// One at a time.
    Serial,
    /// Like [`ConcurrentRequests::Unlimited`], up to this number. At least 2.
    AtMost(NonZeroUsize),
}

impl FromStr for ConcurrentRequests {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let most = text.parse()?;
        Ok(if most == NonZeroUsize::MIN {
            Self::Serial
        } else {
            Self::AtMost(most)
        })
    }
}

/// Log settings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogConfig {
    /// Level. `None`: errors only.
    pub level: Option<LogLevel>,
    /// Format.
    pub format: LogFormat,
}

#[cfg(feature = "executor")]
impl LogConfig {
    /// Returns the log settings of commands other than the server: from flags and variables, not
    /// from a file. Invalid variables are ignored, because they are meant for the server.
    pub fn of_command(flags: &ServerSettings, lookup: VariableLookup<'_>) -> Self {
        let read = |name| lookup(name)?.into_string().ok();
        let level = || {
            let own = read("EXEC_SERVER_LOG_LEVEL").and_then(|text| text.parse().ok());
            own.or_else(|| LogLevel::of_others(lookup))
        };
        let format = || read("EXEC_SERVER_LOG_FORMAT").and_then(|text| text.parse().ok());
        Self {
            level: flags.log_level.clone().or_else(level),
            format: flags.log_format.or_else(format).unwrap_or_default(),
        }
    }
}

/// Logged events: a level, or filters like in `RUST_LOG`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLevel(String);

impl LogLevel {
    /// Returns the text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads `RUST_LOG`. An invalid value is ignored, because it may be meant for other programs.
    #[cfg(feature = "executor")]
    pub(super) fn of_others(lookup: VariableLookup<'_>) -> Option<Self> {
        let text = lookup("RUST_LOG")?.into_string().ok()?;
        text.parse().ok()
    }
}

#[cfg(feature = "executor")]
impl FromStr for LogLevel {
    type Err = LogLevelParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match parse_log_filter(text) {
            Some(_) if !text.is_empty() => Ok(Self(text.to_owned())),
            Some(_) | None => Err(LogLevelParseError),
        }
    }
}

/// Caller: neither a level nor a filter.
#[cfg(feature = "executor")]
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected off, error, warn, info, debug, trace, or filters such as info,exec_service=debug"
)]
pub struct LogLevelParseError;

/// Log format.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[cfg_attr(feature = "executor", derive(clap::ValueEnum))]
pub enum LogFormat {
    /// Text lines.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

#[cfg(feature = "executor")]
impl FromStr for LogFormat {
    type Err = LogFormatParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as clap::ValueEnum>::from_str(text, false).map_err(|_| LogFormatParseError)
    }
}

/// Caller: unknown format.
#[cfg(feature = "executor")]
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected text or json")]
pub struct LogFormatParseError;

/// Loopback address for metrics, which needs no token.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MetricsAddress(SocketAddr);

impl MetricsAddress {
    /// Returns the address.
    pub fn address(self) -> SocketAddr {
        self.0
    }
}

impl FromStr for MetricsAddress {
    type Err = MetricsAddressParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let address: SocketAddr = text.parse().map_err(|_| MetricsAddressParseError)?;
        match address.ip().is_loopback() {
            true => Ok(Self(address)),
            false => Err(MetricsAddressParseError),
        }
    }
}

/// Caller: not a loopback address with a port.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected a loopback address and a port, such as 127.0.0.1:9464: it needs no token. From \
     other machines, use /metrics of a listener with --ws-auth"
)]
pub struct MetricsAddressParseError;

#[cfg(test)]
#[cfg(feature = "executor")]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn one_concurrent_request_is_serial_and_zero_is_an_error() {
        let four = NonZeroUsize::new(4).unwrap();
        assert_eq!("1".parse(), Ok(ConcurrentRequests::Serial));
        assert_eq!("4".parse(), Ok(ConcurrentRequests::AtMost(four)));
        for text in ["0", "-1", "1.5", "", "many"] {
            assert!(text.parse::<ConcurrentRequests>().is_err(), "{text}");
        }
    }

    #[test]
    fn levels_and_filters_are_read() {
        for text in ["off", "info", " warn ", "info,exec_service=debug"] {
            assert_eq!(text.parse(), Ok(LogLevel(text.trim().to_owned())), "{text}");
        }
        let text = "exec_service[request]=trace";
        let of_span = match cfg!(feature = "cli") {
            true => Ok(LogLevel(text.to_owned())),
            false => Err(LogLevelParseError),
        };
        assert_eq!(text.parse(), of_span);
        for text in ["", " ", "exec_service=loud", "a=b=c"] {
            assert_eq!(text.parse::<LogLevel>(), Err(LogLevelParseError), "{text}");
        }
    }

    #[test]
    fn metrics_listener_requires_a_loopback_address() {
        for text in ["127.0.0.1:9464", "127.1.2.3:0", "[::1]:9464"] {
            let address = text.parse::<MetricsAddress>().unwrap().address();
            assert_eq!(address.to_string(), text);
        }
        for text in [
            "0.0.0.0:9464",
            "10.0.0.5:1",
            "localhost:1",
            "127.0.0.1",
            ":9464",
            "",
        ] {
            let refused = text.parse::<MetricsAddress>();
            assert_eq!(refused, Err(MetricsAddressParseError), "{text}");
        }
    }

    #[test]
    fn command_logging_follows_flags_and_variables() {
        let variables = |name: &str| -> Option<OsString> {
            match name {
                "RUST_LOG" => Some("debug".into()),
                "EXEC_SERVER_LOG_FORMAT" => Some("json".into()),
                "EXEC_SERVER_LOG_LEVEL" => Some("x=loud".into()),
                _ => None,
            }
        };
        let flags = ServerSettings::default();
        let found = LogConfig::of_command(&flags, &variables);
        assert_eq!(found.level.unwrap().as_str(), "debug");
        assert_eq!(found.format, LogFormat::Json);
        let flags = ServerSettings {
            log_level: Some("info".parse().unwrap()),
            log_format: Some(LogFormat::Text),
            ..ServerSettings::default()
        };
        let found = LogConfig::of_command(&flags, &variables);
        assert_eq!(found.level.unwrap().as_str(), "info");
        assert_eq!(found.format, LogFormat::Text);
    }
}
