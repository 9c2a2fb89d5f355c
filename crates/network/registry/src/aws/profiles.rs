//! Profiles in the shared files of the AWS tools, and keys from a `credential_process`.

use std::{collections::BTreeMap, fs, io, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use tokio::{
    io::AsyncReadExt,
    process::{Child, Command},
    time::timeout,
};

use super::AwsKeysError;
use crate::api::{SecretString, sigv4::AwsKeys};

/// The profiles of both files. Settings of the file added last take precedence.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) struct AwsProfiles(BTreeMap<String, BTreeMap<String, String>>);

/// Which shared file is being parsed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum ProfileFile {
    /// `config`: profiles other than the default one are `[profile NAME]`.
    Config,
    /// `credentials`: profiles are `[NAME]`.
    Credentials,
}

impl AwsProfiles {
    /// Adds the profiles of a file.
    ///
    /// # Errors
    /// Returns the number of the first invalid line.
    pub(super) fn add(&mut self, kind: ProfileFile, text: &str) -> Result<(), usize> {
        // Other sections, such as `[sso-session NAME]`, are skipped.
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

    /// Returns whether the profile exists.
    pub(super) fn contains(&self, profile: &str) -> bool {
        self.0.contains_key(profile)
    }

    /// Returns a setting unless it is blank.
    pub(super) fn setting(&self, profile: &str, name: &str) -> Option<&str> {
        let value = self.0.get(profile)?.get(name)?;
        (!value.is_empty()).then_some(value)
    }
}

impl std::fmt::Debug for AwsProfiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn profile_name(kind: ProfileFile, section: &str) -> Option<String> {
    let name = match (kind, section) {
        (ProfileFile::Credentials, name) | (ProfileFile::Config, name @ "default") => name,
        (ProfileFile::Config, section) => {
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

/// Strips a trailing comment. It must follow whitespace, because keys may contain `#` and `;`.
fn without_comment(value: &str) -> &str {
    let comments = [" #", " ;", "\t#", "\t;"];
    let starts = comments.iter().filter_map(|mark| value.find(mark));
    starts.min().map_or(value, |start| &value[..start])
}

/// How long the program may run. It may prompt a person.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum output that is read.
const MAX_OUTPUT_BYTES: u64 = 64 << 10;

/// Output of a `credential_process`. The expiry is ignored, because keys are fetched for each
/// signature.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessOutput {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
}

/// Runs the profile's command and returns the keys it prints. Dropping the future kills the
/// program.
pub(super) async fn run_credential_process(
    profile: &str,
    command: &str,
) -> Result<AwsKeys, AwsKeysError> {
    let failed = |source| AwsKeysError::Process {
        profile: profile.to_owned(),
        source,
    };
    let printed = timeout(PROCESS_TIMEOUT, run_command(command)).await;
    let late = |_| failed(io::ErrorKind::TimedOut.into());
    let printed = printed.map_err(late)?.map_err(failed)?;
    parse_output(&printed).map_err(|reason| AwsKeysError::NoKeys {
        profile: profile.to_owned(),
        reason,
    })
}

async fn run_command(command: &str) -> io::Result<Vec<u8>> {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    // Dropped before the shell, so that the id still names it.
    let guard = ShellGuard::new(&child);
    let mut printed = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout
            .take(MAX_OUTPUT_BYTES)
            .read_to_end(&mut printed)
            .await?;
    }
    let status = child.wait().await?;
    guard.release();
    if status.success() {
        Ok(printed)
    } else {
        Err(io::Error::other(status.to_string()))
    }
}

/// Kills the children of a running shell when it is dropped. The shell runs a program as one, and
/// stays in the process group of the terminal, which the program may read.
struct ShellGuard(Option<Pid>);

impl ShellGuard {
    fn new(shell: &Child) -> Self {
        let id = shell.id().and_then(|id| i32::try_from(id).ok());
        Self(id.and_then(Pid::from_raw))
    }

    /// Leaves the children alone: the shell has ended.
    fn release(mut self) {
        self.0 = None;
    }
}

impl Drop for ShellGuard {
    fn drop(&mut self) {
        let Some(shell) = self.0 else { return };
        // A stopped shell reaps no child, so the ids below keep naming its children.
        let _gone = kill_process(shell, Signal::STOP);
        let list = format!("/proc/{shell}/task/{shell}/children");
        let children = fs::read_to_string(list).unwrap_or_default();
        let ids = children.split_whitespace().filter_map(|id| id.parse().ok());
        for child in ids.filter_map(Pid::from_raw) {
            let _gone = kill_process(child, Signal::KILL);
        }
    }
}

fn parse_output(printed: &[u8]) -> Result<AwsKeys, &'static str> {
    let printed: ProcessOutput =
        serde_json::from_slice(printed).map_err(|_| "output is not the expected JSON object")?;
    if printed.version != 1 {
        return Err("`Version` is not 1");
    }
    if printed.access_key_id.is_empty() || printed.secret_access_key.is_empty() {
        return Err("a key is empty");
    }
    Ok(AwsKeys {
        access_key_id: printed.access_key_id,
        secret_key: SecretString::new(printed.secret_access_key),
        session_token: printed
            .session_token
            .filter(|token| !token.is_empty())
            .map(SecretString::new),
    })
}

#[cfg(test)]
mod tests {
    use exec_test_support::bounded_wait::wait_until;

    use super::*;

    #[test]
    fn both_files_are_read_and_credentials_take_precedence() {
        let mut profiles = AwsProfiles::default();
        let config = "# text\n[default]\nregion = eu-west-1 # near\n[profile two]\nREGION=us-east-1\n\
                      aws_access_key_id=old\n[profile \"a b\"]\nregion=x\n[sso-session s]\nregion=no\n\
                      [other]\nregion=no\n";
        profiles.add(ProfileFile::Config, config).unwrap();
        let credentials = "\u{20}\n[two]\naws_access_key_id = new\naws_secret_access_key=a/b+c=#d;e\n  nested = 1\n";
        profiles.add(ProfileFile::Credentials, credentials).unwrap();
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
    fn number_of_the_invalid_line_is_returned() {
        let mut profiles = AwsProfiles::default();
        assert_eq!(
            profiles.add(ProfileFile::Config, "[default]\n\nregion\n"),
            Err(3)
        );
        assert_eq!(profiles.add(ProfileFile::Config, "[default\n"), Err(1));
    }

    #[tokio::test]
    async fn keys_are_parsed_from_the_program_output() {
        let keys = |token: Option<&str>| AwsKeys {
            access_key_id: "id".to_owned(),
            secret_key: SecretString::new("s"),
            session_token: token.map(SecretString::new),
        };
        let json = r#"{"Version":1,"AccessKeyId":"id","SecretAccessKey":"s","SessionToken":"t",
                       "Expiration":"2099-01-01T00:00:00Z"}"#;
        let printed = run_credential_process("p", &format!("printf %s '{json}'"))
            .await
            .unwrap();
        assert_eq!(printed, keys(Some("t")));
        let json = json.replace(r#""SessionToken":"t","#, "");
        let printed = run_credential_process("p", &format!("printf %s '{json}'"))
            .await
            .unwrap();
        assert_eq!(printed, keys(None));
    }

    #[tokio::test]
    async fn invalid_program_output_is_an_error_and_not_repeated() {
        for (command, expected) in [
            (
                "echo s3cret; exit 3",
                "credential_process of AWS profile `p` failed",
            ),
            (
                "echo s3cret",
                "credential_process of AWS profile `p` returned no keys: output is not the expected \
                                  JSON object",
            ),
            (
                r#"echo '{"Version":2,"AccessKeyId":"i","SecretAccessKey":"s3cret"}'"#,
                "credential_process of AWS profile `p` returned no keys: `Version` is not 1",
            ),
            (
                r#"echo '{"Version":1,"AccessKeyId":"","SecretAccessKey":"s3cret"}'"#,
                "credential_process of AWS profile `p` returned no keys: a key is empty",
            ),
        ] {
            let error = run_credential_process("p", command).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert!(!format!("{error:?}").contains("s3cret"));
        }
    }

    #[tokio::test]
    async fn cancelled_command_leaves_no_process_behind() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let command = format!("sleep 1000 & echo $! >{}; wait", file.display());
        let running = tokio::spawn(async move { run_command(&command).await });
        let mut pid = String::new();
        wait_until("the command runs", || {
            pid = fs::read_to_string(&file).unwrap_or_default();
            pid.ends_with('\n')
        })
        .await;
        running.abort();
        // A process that has ended, but that nobody has waited for, has no command line.
        let arguments = format!("/proc/{}/cmdline", pid.trim());
        let is_running = || fs::read(&arguments).is_ok_and(|line| !line.is_empty());
        wait_until("the command ends", || !is_running()).await;
    }

    #[tokio::test(start_paused = true)]
    async fn program_that_never_exits_times_out() {
        let error = run_credential_process("p", "sleep 1000").await.unwrap_err();
        let AwsKeysError::Process { source, .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(source.kind(), io::ErrorKind::TimedOut);
    }
}
