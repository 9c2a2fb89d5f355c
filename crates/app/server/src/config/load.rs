//! From a parsed command line to a configuration, with everything in between.

use std::ffi::OsString;

use super::{ConfigError, ConfigFile, Environment, Lookup, ServerConfig, Strictness, resolve};
use crate::cli::Cli;

/// Reads the environment and the configuration file, and resolves them with the command line.
///
/// # Errors
/// As [`Environment::read`], [`ConfigFile::read`] and [`resolve`].
pub fn load(mut cli: Cli, lookup: Lookup<'_>) -> Result<ServerConfig, ConfigError> {
    let environment = Environment::read(lookup)?;
    cli.strict_config |= environment.strictness == Strictness::Strict;
    cli.proxy_private_ips_via_upstream = cli
        .proxy_private_ips_via_upstream
        .or(environment.proxy_private_ips_via_upstream);
    // In the background there is no standard input; what ends the process of somebody else does not end us.
    let exit_on_stdin_close = environment.exit_on_stdin_close.filter(|_| !cli.background);
    cli.registration.exit_on_stdin_close |= exit_on_stdin_close.is_some_and(|on| on.0);
    let named = cli.config.clone().or(environment.config);
    let file = ConfigFile::find(named, environment.default_config, cli.strictness())?;
    resolve(cli, environment.settings, file)
}

impl ServerConfig {
    /// Reads flags as the command line has them, without the name of a program before them. No variable
    /// and no file adds to them, but the file that a `--config` among them names.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use exec_server::config::ServerConfig;
    ///
    /// let config = ServerConfig::from_flags(["--listen", "ws://127.0.0.1:0", "--session-ttl", "60"])?;
    /// assert_eq!(config.session_ttl, Duration::from_secs(60));
    /// assert!(ServerConfig::from_flags(["--listen", "ws://0.0.0.0:80"]).is_err());
    /// # Ok::<(), anyhow::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a flag is none or has a value that it cannot have, and as [`load`].
    pub fn from_flags<I>(flags: I) -> anyhow::Result<Self>
    where
        I: IntoIterator<Item: Into<OsString>>,
    {
        let name = OsString::from(env!("CARGO_PKG_NAME"));
        let line = [name].into_iter().chain(flags.into_iter().map(Into::into));
        let cli = Cli::read(line)?;
        anyhow::ensure!(
            cli.registration.remote.is_none(),
            "--remote is no setting of a server that listens: see `RemoteEnvironmentConfig`"
        );
        Ok(load(cli, &|_| None)?)
    }
}
