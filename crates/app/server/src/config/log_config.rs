//! Options of those who watch a server: what it logs, and where it shows its numbers.

use std::{net::SocketAddr, str::FromStr};

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

use crate::config::{ServerSettings, VariableLookup};

/// What is logged, and how.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LogConfig {
    /// How much. Absent: errors only.
    pub level: Option<LogLevel>,
    /// In which form.
    pub format: LogFormat,
}

impl LogConfig {
    /// Finds out what commands that are no server log: flags and variables say so, a file does not. What
    /// is wrong in a variable is passed over, as it is not theirs.
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

/// Which events are logged: a level, or filters as `RUST_LOG` has them.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LogLevel(String);

impl LogLevel {
    /// Returns it as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the variable that all programs of this kind share. What is wrong in it is no reason not to
    /// start, as it may be meant for others.
    pub(super) fn of_others(lookup: VariableLookup<'_>) -> Option<Self> {
        let text = lookup("RUST_LOG")?.into_string().ok()?;
        text.parse().ok()
    }
}

impl FromStr for LogLevel {
    type Err = LogLevelParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        match EnvFilter::builder().parse(text) {
            Ok(_) if !text.is_empty() => Ok(Self(text.to_owned())),
            Ok(_) | Err(_) => Err(LogLevelParseError),
        }
    }
}

/// Caller: the text is neither a level nor a filter.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected off, error, warn, info, debug, trace, or filters such as info,exec_service=debug"
)]
pub struct LogLevelParseError;

/// In which form events are logged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub enum LogFormat {
    /// A line for people.
    #[default]
    Text,
    /// A JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = LogFormatParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        <Self as ValueEnum>::from_str(text, false).map_err(|_| LogFormatParseError)
    }
}

/// Caller: the text names no form.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected text or json")]
pub struct LogFormatParseError;

/// An address that only this machine reaches: whoever does is shown the numbers.
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

/// Caller: the text is no such address.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "expected a loopback address and a port, such as 127.0.0.1:9464: it asks for no token. From \
     elsewhere, /metrics of a listener with --ws-auth can be asked"
)]
pub struct MetricsAddressParseError;

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    #[test]
    fn levels_and_filters_are_read() {
        for text in [
            "off",
            "info",
            " warn ",
            "info,exec_service=debug",
            "exec_service[request]=trace",
        ] {
            assert_eq!(text.parse(), Ok(LogLevel(text.trim().to_owned())), "{text}");
        }
        for text in ["", " ", "exec_service=loud", "a=b=c"] {
            assert_eq!(text.parse::<LogLevel>(), Err(LogLevelParseError), "{text}");
        }
    }

    #[test]
    fn only_this_machine_is_shown_numbers_without_a_token() {
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
    fn commands_log_as_flags_and_variables_say() {
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
