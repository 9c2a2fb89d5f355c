//! One line.

use serde::Deserialize;

use super::PipeError;
use crate::{
    api::{EnvironmentId, read_object},
    credentials::Token,
};

/// The only version there is.
const VERSION: u64 = 1;

/// A token, and until when it counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Issued {
    pub(super) token: Token,
    /// Unix seconds. From then on it does not.
    pub(super) expires_at: u64,
}

impl Issued {
    /// Reads a line, with or without its end.
    pub(super) fn read(
        line: &[u8],
        environment: &EnvironmentId,
        now: u64,
    ) -> Result<Self, PipeError> {
        // The library's words repeat values, so they are not kept.
        let frame: Frame = read_object(line).map_err(|_| PipeError::Invalid)?;
        let is_one_word = frame.token.bytes().all(|byte| byte.is_ascii_graphic());
        if frame.version != VERSION || !is_one_word {
            return Err(PipeError::Invalid);
        }
        let token = Token::new(&frame.token).map_err(|_| PipeError::Invalid)?;
        if frame.environment_id != environment.as_str() {
            return Err(PipeError::OtherEnvironment);
        }
        let issued = Self {
            token,
            expires_at: frame.expires_at,
        };
        if issued.is_expired(now) {
            return Err(PipeError::Expired);
        }
        Ok(issued)
    }

    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.expires_at <= now
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    version: u64,
    environment_id: String,
    token: String,
    expires_at: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000;

    fn read(line: &str) -> Result<Issued, PipeError> {
        Issued::read(line.as_bytes(), &EnvironmentId::new("env-1").unwrap(), NOW)
    }

    #[test]
    fn a_frame_has_exactly_four_members() {
        let good = r#"{"version":1,"environment_id":"env-1","token":"abc.def","expires_at":1001}"#;
        for line in [good.to_owned(), format!("{good}\n"), format!(" {good}\r\n")] {
            let issued = read(&line).unwrap();
            assert_eq!(issued.token, Token::new("abc.def").unwrap());
            assert_eq!(issued.expires_at, 1001);
        }
        for (from, to) in [
            (r#""version":1"#, r#""version":2"#),
            (r#""version":1"#, r#""version":"1""#),
            (r#""version":1"#, r#""version":1.0"#),
            (r#""version":1,"#, ""),
            (r#""version":1,"#, r#""version":1,"version":1,"#),
            (r#""version":1"#, r#""version":1,"extra":1"#),
            (r#""abc.def""#, r#""""#),
            (r#""abc.def""#, r#"" abc""#),
            (r#""abc.def""#, r#""abc ""#),
            (r#""abc.def""#, r#""a bc""#),
            (r#""abc.def""#, r#""a\tbc""#),
            (r#""abc.def""#, r#""äbc""#),
            (r#""abc.def""#, r#""abc\n""#),
            (r#""abc.def""#, r#""a\nbc""#),
            (r#""abc.def""#, r#""a\rbc""#),
            (r#""abc.def""#, "7"),
            ("1001", "1001.5"),
            ("1001", "-1"),
            ("1001", r#""1001""#),
            ("1001", "null"),
            ("}", "} {}"),
        ] {
            let line = good.replacen(from, to, 1);
            assert_ne!(line, good);
            assert!(matches!(read(&line), Err(PipeError::Invalid)), "{line}");
        }
        for line in [
            "",
            "\n",
            "\r\n",
            r#"[1,"env-1","abc.def",1001]"#,
            "\u{feff}{}",
        ] {
            assert!(matches!(read(line), Err(PipeError::Invalid)), "{line:?}");
        }
        let not_utf8 = [b"{\"version\":1,\"environment_id\":\"", &[0xff][..]].concat();
        let environment = EnvironmentId::new("env-1").unwrap();
        let read = Issued::read(&not_utf8, &environment, NOW);
        assert!(matches!(read, Err(PipeError::Invalid)));
    }

    #[test]
    fn it_is_for_this_environment_and_in_the_future() {
        let other = r#"{"version":1,"environment_id":"env-2","token":"a","expires_at":1001}"#;
        assert!(matches!(read(other), Err(PipeError::OtherEnvironment)));
        let past = r#"{"version":1,"environment_id":"env-1","token":"a","expires_at":1000}"#;
        assert!(matches!(read(past), Err(PipeError::Expired)));
    }
}
