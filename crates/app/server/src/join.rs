//! `exec-server join`: adds this machine to a hub by an invite, and installs its executor as a
//! systemd service of the account.
//!
//! Invariant: a unit that `join` did not write is never changed.

#[cfg(test)]
mod tests;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use exec_cli::command::{CommandFailure, FailureKind, RedeemedInvite, read_invite, redeem_invite};
use exec_registry::{api::RegistryEnvironmentId, http::BaseUrl, invite::InviteRole};
use exec_settings::settings_source;
use tokio::{process::Command, time::timeout};

use crate::{cli::JoinArgs, config::VariableLookup};

/// What an executor needs to run at the hub.
#[derive(Clone, Debug)]
pub struct JoinedHub {
    /// The hub.
    pub hub: BaseUrl,
    /// Name of this machine there.
    pub environment: RegistryEnvironmentId,
    /// File with the token.
    pub token_file: PathBuf,
}

/// Redeems the invite, and installs the service if the flags ask for one. Returns the settings for
/// running the executor in this process; `None` if the service runs it.
///
/// # Errors
/// When the invite cannot be redeemed, or the service cannot be installed.
pub async fn join_hub(
    join: &JoinArgs,
    lookup: VariableLookup<'_>,
) -> Result<Option<JoinedHub>, CommandFailure> {
    let invite = read_invite(&join.line, InviteRole::Executor)?;
    let environment = RegistryEnvironmentId::new(&invite.name)
        .map_err(|error| CommandFailure::new(FailureKind::Usage, format!("invite: {error}")))?;
    let unit = match join.service {
        // Checked first: a failure must not use up the invite.
        true => Some(UserUnit::find(&environment, lookup)?),
        false => None,
    };
    let RedeemedInvite {
        hub, token_file, ..
    } = redeem_invite(&invite, lookup).await?;
    let joined = JoinedHub {
        hub,
        environment,
        token_file,
    };
    let Some(unit) = unit else {
        let line = joined.command_line();
        eprint(&format!("to run this executor again: exec-server {line}"));
        return Ok(Some(joined));
    };
    unit.install(&joined, lookup).await?;
    Ok(None)
}

impl JoinedHub {
    /// Returns the arguments of the executor.
    fn arguments(&self) -> [String; 6] {
        [
            "--remote".to_owned(),
            self.hub.to_string(),
            "--environment-id".to_owned(),
            self.environment.to_string(),
            "--remote-token-file".to_owned(),
            self.token_file.to_string_lossy().into_owned(),
        ]
    }

    fn command_line(&self) -> String {
        let quoted = |word: &String| match word.contains([' ', '\'', '"', '\\', '$']) {
            true => format!("'{}'", word.replace('\'', r"'\''")),
            false => word.clone(),
        };
        let words: Vec<_> = self.arguments().iter().map(quoted).collect();
        words.join(" ")
    }
}

/// Prints a line to stderr.
fn eprint(text: &str) {
    use std::io::Write as _;
    // A failure cannot be reported anywhere.
    drop(writeln!(io::stderr().lock(), "exec-server: {text}"));
}

/// First line of a unit that `join` may replace.
const MARK: &str = "# Written by `exec-server join --service`, which replaces it.";
/// Limit for one call of systemctl.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Variables that the service needs as well.
const VARIABLES: [&str; 3] = ["EXEC_SERVER_HOME", "SSL_CERT_FILE", "CODEX_CA_CERTIFICATE"];

/// Unit of the account's service manager.
#[derive(Debug)]
struct UserUnit {
    name: String,
    path: PathBuf,
}

impl UserUnit {
    /// Finds the path of the unit. Refuses to replace one that `join` did not write.
    fn find(
        environment: &RegistryEnvironmentId,
        lookup: VariableLookup<'_>,
    ) -> Result<Self, CommandFailure> {
        let plain = |sign: char| match sign.is_ascii_alphanumeric() || "_-".contains(sign) {
            true => sign,
            false => '_',
        };
        let id: String = environment.as_str().chars().map(plain).collect();
        let name = format!("exec-server-{id}.service");
        let config = settings_source::path(lookup, "XDG_CONFIG_HOME");
        let config = config.filter(|config| config.is_absolute());
        let home = || Some(settings_source::path(lookup, "HOME")?.join(".config"));
        let config = config.or_else(home).ok_or_else(|| {
            CommandFailure::new(FailureKind::Failed, "HOME is not set")
                .next("run `exec-server join` without --service")
        })?;
        let path = config.join("systemd/user").join(&name);
        match settings_source::read_text(&path) {
            Ok(text) if text.lines().next() == Some(MARK) => {}
            Ok(_) => {
                let what = format!("`{}` exists and is not from `join`", path.display());
                return Err(CommandFailure::new(FailureKind::Failed, what)
                    .next("move it away, or run `exec-server join` without --service"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(unit_failure("read", &path, &error)),
        }
        Ok(Self { name, path })
    }

    /// Writes the unit, and starts it where systemd runs for the account.
    async fn install(
        &self,
        joined: &JoinedHub,
        lookup: VariableLookup<'_>,
    ) -> Result<(), CommandFailure> {
        let program = std::env::current_exe().map_err(|error| {
            let what = format!("cannot find the path of this program: {error}");
            CommandFailure::new(FailureKind::Failed, what)
        })?;
        let text = unit_text(&program, joined, lookup);
        let written = match self.path.parent() {
            Some(directory) => fs::create_dir_all(directory),
            None => Ok(()),
        };
        let draft = self.path.with_extension("service.new");
        written
            .and_then(|()| fs::write(&draft, text))
            .and_then(|()| fs::rename(&draft, &self.path))
            .map_err(|error| unit_failure("write", &self.path, &error))?;
        let calls: [&[&str]; 3] = [
            &["daemon-reload"],
            &["enable", &self.name],
            // Starts it, or replaces a running one.
            &["restart", &self.name],
        ];
        for call in calls {
            systemctl(call).await.map_err(|why| {
                let (path, name) = (self.path.display(), &self.name);
                let what = format!("`{path}` is written, but systemd did not start it: {why}");
                CommandFailure::new(FailureKind::Failed, what).next(format!(
                    "where systemd runs for your account: systemctl --user daemon-reload && \
                     systemctl --user enable --now {name}; elsewhere: exec-server {}",
                    joined.command_line()
                ))
            })?;
        }
        eprint(&format!(
            "`{}` is running; it stops when you log out, unless you run: loginctl enable-linger",
            self.name
        ));
        Ok(())
    }
}

fn unit_failure(operation: &str, path: &Path, error: &io::Error) -> CommandFailure {
    let what = format!("cannot {operation} `{}`: {error}", path.display());
    CommandFailure::new(FailureKind::Failed, what).next("run `exec-server join` without --service")
}

/// Runs `systemctl --user`. The error is one line.
async fn systemctl(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("systemctl");
    command
        .arg("--user")
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let call = format!("systemctl --user {}", arguments.join(" "));
    let Output { status, stderr, .. } = match timeout(TIMEOUT, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(format!("cannot run systemctl: {error}")),
        Err(_) => return Err(format!("`{call}` did not end within {TIMEOUT:?}")),
    };
    if status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&stderr);
    let why = stderr.lines().find(|line| !line.trim().is_empty());
    Err(format!("`{call}`: {}", why.unwrap_or("it failed")))
}

/// Returns the content of the unit.
fn unit_text(program: &Path, joined: &JoinedHub, lookup: VariableLookup<'_>) -> String {
    let words = [program.to_string_lossy().into_owned()];
    let words = words.into_iter().chain(joined.arguments());
    let start: Vec<_> = words.map(|word| quoted(&word)).collect();
    let variables = VARIABLES.iter().filter_map(|name| {
        let value = lookup(name).filter(|value| !value.is_empty())?;
        let setting = format!("{name}={}", value.to_string_lossy());
        Some(format!("Environment={}\n", quoted(&setting)))
    });
    format!(
        "{MARK}\n\
         [Unit]\n\
         Description=exec-server executor {} at {}\n\
         \n\
         [Service]\n\
         Type=exec\n\
         {}\
         ExecStart={}\n\
         Restart=on-failure\n\
         RestartSec=30\n\
         KillMode=process\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n",
        escaped(joined.environment.as_str()),
        escaped(&joined.hub.to_string()),
        variables.collect::<String>(),
        start.join(" "),
    )
}

/// Quotes a word for systemd.
fn quoted(word: &str) -> String {
    let word = escaped(word).replace('\\', r"\\").replace('"', "\\\"");
    format!("\"{}\"", word.replace('$', "$$"))
}

/// Escapes specifiers of systemd, and replaces line breaks, which would begin another setting.
fn escaped(text: &str) -> String {
    text.replace('%', "%%").replace(['\n', '\r'], " ")
}
