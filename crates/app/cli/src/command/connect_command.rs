//! `exec-server connect`: a place with a shell as an environment, for a client that starts this
//! program and speaks on its stdin and stdout.
//!
//! Invariant: the client's link ends only with this process. A lost connection to the place is
//! replaced below, by the client of the server there.

use std::{
    io::{IsTerminal, stdin},
    num::NonZeroUsize,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use exec_service::{Concurrency, Service, ServiceConfig};
use exec_settings::shutdown_signal::{ShutdownSignal, StdinClose};
use exec_transport::{lines, link::LinkRole};
use exec_wire::{initialize::ServerInfo, limits};

use crate::{
    PROGRAM_NAME,
    command::{
        connect::{ConnectedEnv, EnvArgs, EnvRoute},
        failure::CommandFailure,
        print::print,
        quantity::DurationArg,
    },
};

/// Makes an environment of any place with a shell, for a client on stdin and stdout.
///
/// Pushes a small program there once, which is verified on every use, and joins or starts the
/// background server of the account. A lost connection is replaced by a fresh one: processes run
/// on, and no output is lost. With a terminal as stdin it only makes the place ready and reports
/// that.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ConnectCommand {
    /// Place: `ssh:[USER@]HOST[:PORT]`, `docker:NAME`, `podman:NAME`,
    /// `k8s:[CONTEXT/]NAMESPACE/POD[/CONTAINER]`, `exec:'COMMAND'`, or several with `/` between, such
    /// as `ssh:box/docker:web`.
    pub target: String,

    /// Leaves nothing there: the server ends with the connection, and so does everything it runs.
    #[arg(long)]
    pub ephemeral: bool,

    /// Gives up after this time without a connection, such as 30s or 10m [default: as long as the
    /// server keeps the session].
    #[arg(long, value_name = "SPAN", env = "EXEC_SERVER_RECONNECT_TIMEOUT")]
    pub reconnect_timeout: Option<DurationArg>,
}

impl ConnectCommand {
    /// Serves the client until it leaves.
    pub(crate) async fn run(self) -> Result<ExitCode, CommandFailure> {
        // A name or a URL would do as well, but says less than it seems to.
        EnvRoute::target(&self.target)?;
        let env_args = EnvArgs {
            env: Some(self.target.clone()),
            ephemeral: self.ephemeral,
            reconnect_timeout: self.reconnect_timeout,
            ..EnvArgs::default()
        };
        if stdin().is_terminal() {
            let env = ConnectedEnv::open(&env_args).await?;
            let (name, version) = (&env.name, &env.info.executor_version);
            print(&format!(
                "{name} is ready: exec-server {version}; use it with --env {name}\n"
            ))?;
            return Ok(ExitCode::SUCCESS);
        }
        serve(ConnectedEnv::open_unattended(&env_args).await?).await
    }
}

/// Serves one client with an environment.
async fn serve(env: ConnectedEnv) -> Result<ExitCode, CommandFailure> {
    let mut stop = ShutdownSignal::new(StdinClose::Ignored).map_err(CommandFailure::failed)?;
    let environment = env.environment();
    let service = Service::new(config(), move || environment.clone());
    let link = lines::link(
        tokio::io::stdin(),
        tokio::io::stdout(),
        LinkRole::Server,
        "stdio",
    );
    // If the session there is lost, its processes are, and the next request opens another one.
    tokio::select! {
        () = service.serve(link) => {}
        () = stop.recv() => {}
    }
    service.shut_down(Duration::ZERO).await;
    Ok(ExitCode::SUCCESS)
}

fn config() -> ServiceConfig {
    ServiceConfig {
        session_ttl: Duration::ZERO,
        process_retention: limits::CLOSED_RETENTION,
        max_processes: limits::MAX_PROCESSES,
        allow_direct_exec: true,
        allow_prepared_exec: true,
        concurrency: Concurrency::AtMost(MAX_REQUESTS),
        busy_poll: Duration::ZERO,
        server_name: ServerInfo {
            name: PROGRAM_NAME.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        durability: None,
    }
}

const MAX_REQUESTS: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

const EXAMPLES: &str = "\
Examples:
  exec-server connect ssh:box
      Makes the account ready; afterwards: exec-server run --env ssh:box -- make
  exec-server connect ssh:box/docker:web
      The same for a container on that host

  # ~/.codex/environments.toml
  [[environments]]
  id = \"box\"
  program = \"exec-server\"
  args = [\"connect\", \"ssh:box\"]";
