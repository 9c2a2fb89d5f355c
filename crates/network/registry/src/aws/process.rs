//! Keys that a program of the host's owner prints (`credential_process`).

use std::{io, process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::KeysError;
use crate::sigv4::{Keys, SecretKey, SessionToken};

/// How long the program may take: it may ask a person.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most that is read of what it prints.
const MAX_BYTES: u64 = 64 << 10;

/// What such a program prints. When keys expire is not asked: they are fetched for each signature.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
}

/// Runs a command line of a profile for its keys. Dropping the future ends the program.
pub(super) async fn run(profile: &str, command: &str) -> Result<Keys, KeysError> {
    let failed = |source| KeysError::Process {
        profile: profile.to_owned(),
        source,
    };
    let printed = timeout(TIMEOUT, output(command)).await;
    let late = |_| failed(io::ErrorKind::TimedOut.into());
    let printed = printed.map_err(late)?.map_err(failed)?;
    parse(&printed).map_err(|reason| KeysError::NoKeys {
        profile: profile.to_owned(),
        reason,
    })
}

async fn output(command: &str) -> io::Result<Vec<u8>> {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(MAX_BYTES).read_to_end(&mut printed).await?;
    }
    let status = child.wait().await?;
    if status.success() {
        Ok(printed)
    } else {
        Err(io::Error::other(status.to_string()))
    }
}

fn parse(printed: &[u8]) -> Result<Keys, &'static str> {
    let printed: Printed = serde_json::from_slice(printed)
        .map_err(|_| "it is not the JSON object that is expected")?;
    if printed.version != 1 {
        return Err("its version is not 1");
    }
    if printed.access_key_id.is_empty() || printed.secret_access_key.is_empty() {
        return Err("a key is empty");
    }
    Ok(Keys {
        access_key_id: printed.access_key_id,
        secret_key: SecretKey::new(printed.secret_access_key),
        session_token: printed
            .session_token
            .filter(|token| !token.is_empty())
            .map(SessionToken::new),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_are_what_the_program_prints() {
        let keys = |token: Option<&str>| Keys {
            access_key_id: "id".to_owned(),
            secret_key: SecretKey::new("s"),
            session_token: token.map(SessionToken::new),
        };
        let json = r#"{"Version":1,"AccessKeyId":"id","SecretAccessKey":"s","SessionToken":"t",
                       "Expiration":"2099-01-01T00:00:00Z"}"#;
        let printed = run("p", &format!("printf %s '{json}'")).await.unwrap();
        assert_eq!(printed, keys(Some("t")));
        let json = json.replace(r#""SessionToken":"t","#, "");
        let printed = run("p", &format!("printf %s '{json}'")).await.unwrap();
        assert_eq!(printed, keys(None));
    }

    #[tokio::test]
    async fn what_is_no_answer_is_told_and_not_shown() {
        for (command, told) in [
            (
                "echo s3cret; exit 3",
                "credential_process of AWS profile `p` failed",
            ),
            (
                "echo s3cret",
                "credential_process of AWS profile `p` gave no keys: it is not the JSON object that \
                 is expected",
            ),
            (
                r#"echo '{"Version":2,"AccessKeyId":"i","SecretAccessKey":"s3cret"}'"#,
                "credential_process of AWS profile `p` gave no keys: its version is not 1",
            ),
            (
                r#"echo '{"Version":1,"AccessKeyId":"","SecretAccessKey":"s3cret"}'"#,
                "credential_process of AWS profile `p` gave no keys: a key is empty",
            ),
        ] {
            let error = run("p", command).await.unwrap_err();
            assert_eq!(error.to_string(), told);
            assert!(!format!("{error:?}").contains("s3cret"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_program_that_never_ends_is_given_up() {
        let error = run("p", "sleep 1000").await.unwrap_err();
        let KeysError::Process { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }
}
