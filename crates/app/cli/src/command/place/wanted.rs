//! The options that choose an environment.

use std::path::PathBuf;

use clap::Args;

use crate::command::amount::Span;

/// Which environment.
#[derive(Args, Clone, Debug, Default)]
pub struct Where {
    /// Environment: a name that `env list` shows, `local`, or the ws://, wss:// or unix:// URL of a
    /// server [default: the one that `env default` sets, or this machine].
    #[arg(
        short = 'E',
        long = "env",
        value_name = "NAME|URL",
        env = "EXEC_SERVER_ENV",
        help_heading = ENVIRONMENT
    )]
    pub env: Option<String>,

    /// File with the token that a server at a URL asks for; EXEC_SERVER_TOKEN is the token itself.
    #[arg(
        long,
        value_name = "FILE",
        env = "EXEC_SERVER_TOKEN_FILE",
        help_heading = ENVIRONMENT
    )]
    pub token_file: Option<PathBuf>,

    /// Gives up after this long without a connection, such as 30s or 10m [default: as long as the
    /// server keeps the session].
    #[arg(
        long,
        value_name = "SPAN",
        env = "EXEC_SERVER_RECONNECT_TIMEOUT",
        help_heading = ENVIRONMENT
    )]
    pub reconnect_timeout: Option<Span>,
}

const ENVIRONMENT: &str = "Environment";
