//! Offering a server that listens elsewhere.

use exec_cli::settings_source::text;
use exec_registry::{
    api::EnvironmentId,
    forward::{Destination, Forwarder},
    http::BaseUrl,
};

use super::{
    Network, RemoteConfigError, RemoteCredentials,
    run::{registry, relay_executor, unless_unwanted},
};
use crate::{
    cli::{ChatGptAuth, Forward, Registration},
    config::{Lookup, STDIN_CLOSE, Switch},
    shutdown_signal::{StdinClose, Stop},
};

/// What is offered, and where.
#[derive(Debug)]
pub struct ForwardConfig {
    destination: Destination,
    registry_url: BaseUrl,
    environment_id: EnvironmentId,
    credentials: RemoteCredentials,
    network: Network,
    stdin_close: StdinClose,
}

impl ForwardConfig {
    /// Puts flags and variables together.
    ///
    /// # Errors
    /// When there is nothing to present to the registry, or a variable does not make sense.
    pub fn find(flags: &Forward, lookup: Lookup<'_>) -> Result<Self, RemoteConfigError> {
        let registration = &flags.registration;
        let (Some(registry_url), Some(environment_id)) =
            (&registration.remote, &registration.environment_id)
        else {
            return Err(RemoteConfigError::NoRegistry);
        };
        let exists = |path: &std::path::Path| path.exists();
        Ok(Self {
            destination: flags.connect.clone(),
            credentials: RemoteCredentials::choose(
                registration,
                &flags.transport,
                &ChatGptAuth::default(),
                lookup,
                &exists,
            )?,
            network: Network::find(lookup, registry_url)?,
            registry_url: registry_url.clone(),
            environment_id: environment_id.clone(),
            stdin_close: stdin_close(registration, lookup)?,
        })
    }
}

/// Tells what the end of standard input is, by flag or variable.
fn stdin_close(
    registration: &Registration,
    lookup: Lookup<'_>,
) -> Result<StdinClose, RemoteConfigError> {
    let variable = STDIN_CLOSE;
    let set = text(lookup, variable)?.map(|text| text.parse());
    let set: Option<Switch> = set
        .transpose()
        .map_err(|source| RemoteConfigError::Switch { variable, source })?;
    let ends = registration.exit_on_stdin_close || set.is_some_and(|on| on.0);
    Ok(match ends {
        true => StdinClose::Ends,
        false => StdinClose::Ignored,
    })
}

/// Forwards until SIGTERM or SIGINT, or until the end of standard input as
/// [`run_remote_environment`](super::run_remote_environment) does. Then everything is cut without a word.
///
/// # Errors
/// When the registry does not take the environment, at first or later, or there is nothing that could be
/// presented to it.
pub async fn run_forward(config: ForwardConfig) -> anyhow::Result<()> {
    let ForwardConfig {
        destination,
        registry_url,
        environment_id,
        credentials,
        network,
        stdin_close,
    } = config;
    let mut stop = Stop::new(credentials.leave_stdin(stdin_close))?;
    let forwarding = async {
        let opened = registry(&registry_url, &environment_id, &credentials, &network).await;
        let (registry, stdin) = match opened {
            Ok((registry, pipe)) => (registry, credentials.stdin_end(pipe, stdin_close)),
            Err(error) => return unless_unwanted(error),
        };
        let executor = relay_executor(registry, environment_id, &network);
        let forwarder = Forwarder::new(executor, destination, network.trust.clone());
        tokio::select! {
            ended = stdin.ended() => ended,
            failed = forwarder.run(std::future::pending()) => Ok(failed?),
        }
    };
    tokio::select! {
        outcome = forwarding => outcome,
        () = stop.asked() => Ok(()),
    }
}
