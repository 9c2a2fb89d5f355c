//! Why an environment was not reached, and what to do about it.

use exec_client::error::{ConnectError, ExecServerError};
use exec_transport::connect::{Address, Scheme};

use crate::{
    command::failure::{Failure, FailureKind},
    environments::{AuthToken, Reach, ReachError},
};

/// How the environment was asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Asked {
    /// By a name.
    Named,
    /// By a URL.
    Typed,
}

/// Says why an environment was not reached.
pub(super) fn explain(name: &str, reach: &Reach, asked: Asked, error: ReachError) -> Failure {
    let error = match error {
        ReachError::Settings(error) => {
            let what = format!(
                "environment `{name}`: {:#}",
                anyhow::Error::from_boxed(error)
            );
            return Failure::new(FailureKind::UnknownEnvironment, what);
        }
        ReachError::Connect(ExecServerError::Connect(error)) => error,
        ReachError::Connect(error) => return error.into(),
    };
    let failure = |kind| Failure::new(kind, format!("cannot reach `{name}`: {error}"));
    match &error {
        ConnectError::Denied(_) => failure(FailureKind::NotAllowed).next(match asked {
            Asked::Typed => {
                "pass its token with --token-file FILE, or in EXEC_SERVER_TOKEN".to_owned()
            }
            Asked::Named => denied(reach),
        }),
        ConnectError::Offline(_) => failure(FailureKind::Unreachable).next(offline(reach)),
        ConnectError::Address(_) => match reach {
            Reach::Program(_) => failure(FailureKind::Unreachable)
                .next("check its command in environments.toml, by running it yourself"),
            Reach::Url(_) | Reach::Relay(_) => failure(FailureKind::Usage),
        },
        ConnectError::Link(_) => failure(FailureKind::Unreachable).next(unreachable(name, reach)),
        ConnectError::Busy(_) => {
            failure(FailureKind::Unreachable).next("try again in a moment, or ask who runs it")
        }
        ConnectError::Unwelcome(_) => match is_tls(reach) {
            true => failure(FailureKind::Unreachable)
                .next("check the URL; SSL_CERT_FILE names certificates to trust"),
            false => failure(FailureKind::Unreachable)
                .next("check that the URL is one of an exec-server"),
        },
        ConnectError::Replaced(_)
        | ConnectError::Refused(_)
        | ConnectError::Timeout(_)
        | ConnectError::Broken(_)
        | ConnectError::Malformed(_)
        | ConnectError::WrongSession { .. }
        | _ => failure(FailureKind::Unreachable).next("check that an exec-server answers there"),
    }
}

/// Says where the token came from.
fn denied(reach: &Reach) -> String {
    match reach {
        Reach::Relay(relay) => match &relay.auth_token {
            AuthToken::Variable(name, _) => format!("check the token in {name}"),
            AuthToken::File(path) => {
                let path = path.display();
                format!("check the token in {path}, which environments.toml names")
            }
            AuthToken::Value(_) => "check its token in environments.toml".to_owned(),
        },
        Reach::Url(url) if url.auth_bearer_token.is_none() => {
            "pass its token with --token-file FILE, or name it in environments.toml".to_owned()
        }
        Reach::Url(_) | Reach::Program(_) => "check its token in environments.toml".to_owned(),
    }
}

fn offline(reach: &Reach) -> String {
    match reach {
        Reach::Relay(relay) => format!(
            "start it there: exec-server --remote {} --environment-id {} --remote-token-file FILE",
            relay.registry_url, relay.environment_id
        ),
        Reach::Url(_) | Reach::Program(_) => "start its server".to_owned(),
    }
}

fn unreachable(name: &str, reach: &Reach) -> String {
    match reach {
        Reach::Url(url) => match url.url.parse::<Address>() {
            Ok(address @ (Address::Unix(_) | Address::Network(_))) if address.is_private() => {
                format!("start a server there: exec-server --listen {address}")
            }
            Ok(_) | Err(_) => "check the network, and that a server listens there".to_owned(),
        },
        Reach::Relay(relay) => format!("check the network, and the hub at {}", relay.registry_url),
        Reach::Program(_) => format!("check the command of `{name}` in environments.toml"),
    }
}

fn is_tls(reach: &Reach) -> bool {
    match reach {
        Reach::Url(url) => matches!(
            url.url.parse::<Address>(),
            Ok(Address::Network(host)) if host.scheme == Scheme::Wss
        ),
        Reach::Relay(relay) => relay.registry_url.url().scheme() == "https",
        Reach::Program(_) => false,
    }
}
