//! From a parsed command line to a configuration, with everything in between.

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
    let named = cli.config.clone().or(environment.config);
    let file = ConfigFile::find(named, environment.default_config, cli.strictness())?;
    resolve(cli, environment.settings, file)
}
