//! The command line of `exec-server`.
//! Invariant: what is wrong with one argument alone is found here, by the parser, and ends with
//! status 2; what is wrong with their combination is found by `config`, and ends with status 1.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{Override, Settings, Strictness, Switch};

/// Runs commands and file operations for a client that lives elsewhere.
///
/// The client speaks JSON-RPC over a websocket, a unix socket or stdio. A websocket listener
/// prints one line to stdout once it is bound, its URL with the real port; logs go to stderr.
#[derive(Clone, Debug, Parser)]
#[command(name = "exec-server", version, after_help = AFTER_HELP, disable_help_subcommand = true)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,

    /// Options that can also come from the environment and from the configuration file.
    #[command(flatten)]
    pub settings: Settings,

    /// Configuration file, in TOML, with the long options as keys, such as session_ttl = 30
    /// [default: $EXEC_SERVER_HOME/config.toml or ~/.config/exec-server/config.toml, if it
    /// exists].
    #[arg(long, value_name = "FILE", help_heading = CONFIGURATION)]
    pub config: Option<PathBuf>,

    /// Sets one key of the configuration file, repeatable; the value is TOML, or else a string.
    #[arg(short = 'c', value_name = "KEY=VALUE", help_heading = CONFIGURATION)]
    pub overrides: Vec<Override>,

    /// Refuses to start on unknown keys and on a broken configuration file, instead of warning.
    #[arg(long, help_heading = CONFIGURATION)]
    pub strict_config: bool,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(long, value_name = "FEATURE", help_heading = CONFIGURATION, hide_short_help = true)]
    pub enable: Vec<String>,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(long, value_name = "FEATURE", help_heading = CONFIGURATION, hide_short_help = true)]
    pub disable: Vec<String>,

    /// Accepted for compatibility and ignored with a warning.
    #[arg(
        long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true", help_heading = CONFIGURATION, hide_short_help = true
    )]
    pub proxy_private_ips_via_upstream: Option<Switch>,
}

/// What to do instead of serving.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Tells what this machine can enforce, and what would help where it cannot.
    ///
    /// Everything is tried, as the server would do it, which takes at most 20 seconds. Options of
    /// the server's count, before the command: `exec-server --sandbox-mechanism landlock doctor`
    /// tells what Landlock alone would do. Run it where the server runs: under the same account, in
    /// the same container.
    #[command(after_help = DOCTOR_STATUS)]
    Doctor(Doctor),
}

/// Options of `exec-server doctor`.
#[derive(Args, Clone, Copy, Debug, Eq, PartialEq)]
pub struct Doctor {
    /// Prints one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

impl Cli {
    /// What `--strict-config` asks for.
    pub fn strictness(&self) -> Strictness {
        if self.strict_config {
            Strictness::Strict
        } else {
            Strictness::Lenient
        }
    }
}

const DOCTOR_STATUS: &str = "\
Exit status: 0 if every kind of policy can be enforced, 1 if not, 2 for a wrong command line.";

const CONFIGURATION: &str = "Configuration";

const AFTER_HELP: &str = "\
Each option is looked for in four places, and the first one wins: its flag, `-c`, the environment \
(EXEC_SERVER_ and the flag in upper case, such as EXEC_SERVER_SESSION_TTL), the configuration \
file. Relative paths start at the working directory, wherever they are written.

Examples:
  exec-server
      A free port of this machine, whose URL is printed
  exec-server --listen stdio
      One client, on stdin and stdout: for a parent process, or over ssh
  exec-server --listen unix:///run/user/1000/exec.sock --session-ttl 600
      A unix socket; processes survive ten minutes without their client
  exec-server --listen wss://0.0.0.0:8443 --tls-cert cert.pem --tls-key key.pem \\
              --ws-auth capability-token --ws-token-file token
      Every interface, encrypted, for clients that hold the token
  exec-server --listen ws://10.0.0.5:8080 \\
              --ws-auth signed-bearer-token --ws-shared-secret-file secret --ws-audience box-7
      For clients with a JWT, signed with the secret and meant for box-7
  exec-server doctor
      What this machine can enforce of sandbox policies; serves nobody

Exit status: 0 after SIGTERM or SIGINT, 1 if the server cannot start, 2 for a wrong command line.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::config::SandboxMechanism;

    #[test]
    fn the_parser_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_is_accepted() {
        let cli = Cli::try_parse_from([
            "exec-server",
            "--listen=ws://127.0.0.1:0",
            "--concurrent-requests=1",
            "--ws-auth=signed-bearer-token",
            "--ws-token-file=t",
            "--ws-token-sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "--ws-shared-secret-file=s",
            "--ws-issuer=i",
            "--ws-audience=a",
            "--ws-max-clock-skew-seconds=5",
            "--tls-cert=c",
            "--tls-key=k",
            "--session-ttl=0.5",
            "--retained-output-bytes=1",
            "--max-processes=1",
            "--shutdown-grace=1",
            "--allow-direct-exec=false",
            "--allow-prepared-exec=false",
            "--insecure-no-auth",
            "--sandbox-mechanism=landlock",
            "--linux-sandbox-pid-namespace=inherit",
            "--proxy-private-ips-via-upstream",
            "--config=f",
            "-c",
            "listen=off",
            "-csession_ttl=1",
            "--enable=x",
            "--disable=y",
            "--strict-config",
        ]);
        assert_eq!(
            cli.map(|cli| cli.overrides.len())
                .map_err(|error| error.to_string()),
            Ok(2)
        );
    }

    #[test]
    fn wrong_arguments_are_the_parsers_to_refuse() {
        let wrong: [&[&str]; 19] = [
            &["--listen=ws://localhost:0"],
            &["--concurrent-requests=0"],
            &["--concurrent-requests=two"],
            &["--ws-auth=none"],
            &["--ws-token-sha256=abc"],
            &["--session-ttl=-1"],
            &["--session-ttl=nan"],
            &["--max-processes=0"],
            &["--allow-direct-exec=perhaps"],
            &["-c", "listen"],
            &["-c", "=off"],
            &["--remote=ws://127.0.0.1:0"],
            &["--listen=off", "--listen=off"],
            &["--sandbox-mechanism=seatbelt"],
            &["--linux-sandbox-pid-namespace=host"],
            &["serve"],
            &["help"],
            &["doctor", "--listen=off"],
            &["doctor", "now"],
        ];
        for arguments in wrong {
            let line = ["exec-server"].iter().chain(arguments);
            let error = Cli::try_parse_from(line)
                .err()
                .map(|error| error.exit_code());
            assert_eq!(error, Some(2), "{arguments:?}");
        }
    }

    #[test]
    fn doctor_is_the_only_command_and_takes_the_servers_options_before_it() {
        let parsed = |line: &[&str]| {
            let line = ["exec-server"].iter().chain(line);
            let cli = Cli::try_parse_from(line).unwrap();
            let doctor = cli.command.map(|Command::Doctor(doctor)| doctor.json);
            (doctor, cli.settings.sandbox_mechanism)
        };
        let landlock = Some(SandboxMechanism::Landlock);
        assert_eq!(parsed(&[]), (None, None));
        assert_eq!(parsed(&["doctor"]), (Some(false), None));
        assert_eq!(
            parsed(&["--sandbox-mechanism=landlock", "doctor", "--json"]),
            (Some(true), landlock)
        );
        let value = parsed(&["--enable", "doctor", "--sandbox-mechanism", "landlock"]);
        assert_eq!(
            value,
            (None, landlock),
            "the value of an option is no command"
        );
    }

    #[test]
    fn help_has_headings_defaults_and_examples() {
        let help = Cli::command().render_long_help().to_string();
        for text in [
            "Listener:",
            "Authentication:",
            "Sessions",
            "ws://127.0.0.1:0",
            "Sandbox:",
            "doctor",
            "Examples:",
        ] {
            assert!(help.contains(text), "{text}\n{help}");
        }
    }
}
