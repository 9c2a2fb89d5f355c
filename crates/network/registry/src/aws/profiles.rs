//! The shared files of the AWS tools: sections of settings.

use std::{collections::BTreeMap, io, process::Stdio, time::Duration};

use serde::Deserialize;
use tokio::{io::AsyncReadExt, process::Command, time::timeout};

use super::KeysError;
use crate::api::sigv4::{Keys, SecretKey, SessionToken};

/// The profiles of both files. Settings of the second file win.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) struct Profiles(BTreeMap<String, BTreeMap<String, String>>);

/// Which file a text is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// `config`: profiles other than the default one are `[profile NAME]`.
    Config,
    /// `credentials`: they are `[NAME]`.
    Credentials,
}

impl Profiles {
    /// Adds what a file has.
    ///
    /// # Errors
    /// With the number of the first line that cannot be read.
    pub(super) fn add(&mut self, kind: Kind, text: &str) -> Result<(), usize> {
        // Sections that are no profiles, such as `[sso-session NAME]`, are passed over.
        let mut section = None;
        for (number, line) in text.lines().enumerate() {
            let content = line.trim();
            let is_nested = line.starts_with([' ', '\t']);
            if content.is_empty() || content.starts_with(['#', ';']) || is_nested {
                continue;
            }
            if let Some(rest) = content.strip_prefix('[') {
                let (name, _) = rest.split_once(']').ok_or(number + 1)?;
                section = profile_name(kind, name.trim());
                if let Some(name) = &section {
                    self.0.entry(name.clone()).or_default();
                }
                continue;
            }
            let (name, value) = content.split_once('=').ok_or(number + 1)?;
            let Some(profile) = section.as_ref().and_then(|name| self.0.get_mut(name)) else {
                continue;
            };
            let value = without_comment(value).trim().to_owned();
            profile.insert(name.trim().to_ascii_lowercase(), value);
        }
        Ok(())
    }

    /// Tells whether there is a profile of this name.
    pub(super) fn contains(&self, profile: &str) -> bool {
        self.0.contains_key(profile)
    }

    /// Returns a setting that is not blank.
    pub(super) fn setting(&self, profile: &str, name: &str) -> Option<&str> {
        let value = self.0.get(profile)?.get(name)?;
        (!value.is_empty()).then_some(value)
    }
}

impl std::fmt::Debug for Profiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn profile_name(kind: Kind, section: &str) -> Option<String> {
    let name = match (kind, section) {
        (Kind::Credentials, name) | (Kind::Config, name @ "default") => name,
        (Kind::Config, section) => {
            let (word, name) = section.split_once(char::is_whitespace)?;
            if word != "profile" {
                return None;
            }
            name.trim()
        }
    };
    let quoted = name
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    Some(quoted.unwrap_or(name).to_owned())
}

/// A comment within a line has a blank before it: keys may hold such characters.
fn without_comment(value: &str) -> &str {
    let comments = [" #", " ;", "\t#", "\t;"];
    let starts = comments.iter().filter_map(|mark| value.find(mark));
    starts.min().map_or(value, |start| &value[..start])
}

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

    #[test]
    fn both_files_are_read_and_credentials_win() {
        let mut profiles = Profiles::default();
        let config = "# text\n[default]\nregion = eu-west-1 # near\n[profile two]\nREGION=us-east-1\n\
                      aws_access_key_id=old\n[profile \"a b\"]\nregion=x\n[sso-session s]\nregion=no\n\
                      [other]\nregion=no\n";
        profiles.add(Kind::Config, config).unwrap();
        let credentials = "\u{20}\n[two]\naws_access_key_id = new\naws_secret_access_key=a/b+c=#d;e\n  nested = 1\n";
        profiles.add(Kind::Credentials, credentials).unwrap();
        assert_eq!(profiles.setting("default", "region"), Some("eu-west-1"));
        assert_eq!(profiles.setting("two", "region"), Some("us-east-1"));
        assert_eq!(profiles.setting("a b", "region"), Some("x"));
        assert_eq!(profiles.setting("two", "aws_access_key_id"), Some("new"));
        let secret = profiles.setting("two", "aws_secret_access_key");
        assert_eq!(secret, Some("a/b+c=#d;e"));
        assert_eq!(profiles.setting("two", "nested"), None);
        assert!(!profiles.contains("other") && !profiles.contains("s"));
        assert!(!format!("{profiles:?}").contains("a/b"));
    }

    #[test]
    fn the_line_that_cannot_be_read_is_told() {
        let mut profiles = Profiles::default();
        assert_eq!(profiles.add(Kind::Config, "[default]\n\nregion\n"), Err(3));
        assert_eq!(profiles.add(Kind::Config, "[default\n"), Err(1));
    }

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
