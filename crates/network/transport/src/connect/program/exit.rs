//! How a program ended.

use std::{fmt, os::unix::process::ExitStatusExt, process::ExitStatus};

/// How the program at the other end of a link ended.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Exit {
    /// What it left; unknown if it was given up.
    pub status: Option<ExitStatus>,
    /// The last line it wrote to standard error.
    pub last_words: Option<String>,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status.map(|status| (status.code(), status.signal())) {
            Some((Some(code), _)) => write!(f, "exited with status {code}")?,
            Some((None, Some(signal))) => write!(f, "was ended by signal {signal}")?,
            Some((None, None)) | None => f.write_str("ended")?,
        }
        match &self.last_words {
            Some(line) => write!(f, ": {line}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Exit {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_tells_status_and_last_words() {
        let exit = |raw, words: Option<&str>| Exit {
            status: Some(ExitStatus::from_raw(raw)),
            last_words: words.map(str::to_owned),
        };
        assert_eq!(exit(0, None).to_string(), "exited with status 0");
        assert_eq!(
            exit(1 << 8, Some("no")).to_string(),
            "exited with status 1: no"
        );
        assert_eq!(exit(9, None).to_string(), "was ended by signal 9");
    }
}
