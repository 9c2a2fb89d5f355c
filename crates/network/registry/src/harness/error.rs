//! Why a harness has no ticket.

use exec_transport::connect::{ConnectError, Fault};

use crate::{http::ExchangeError, registry::RegistryError};

/// Why there is no ticket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// As the registry's error says.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Peer: another executor is there than the one that has the session, which is lost.
    #[error("executor key changed")]
    KeyChanged,
}

impl TicketError {
    /// Tells whether asking again may help.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Registry(error) => error.may_connect_again(),
            Self::KeyChanged => false,
        }
    }
}

impl From<TicketError> for ConnectError {
    fn from(error: TicketError) -> Self {
        match error {
            TicketError::KeyChanged => Self::ExecutorChanged,
            TicketError::Registry(source) => Self::Ticket {
                fault: fault(&source),
                is_passing: source.may_connect_again(),
                source: Box::new(source),
            },
        }
    }
}

/// Tells who has to act.
fn fault(error: &RegistryError) -> Fault {
    match error {
        RegistryError::Url(_)
        | RegistryError::InTheClear(_)
        | RegistryError::Credential(_)
        | RegistryError::Denied { .. } => Fault::Caller,
        RegistryError::Exchange(ExchangeError::TooLarge(_))
        | RegistryError::StreamId
        | RegistryError::Refused { .. }
        | RegistryError::Malformed(_)
        | RegistryError::Member(_) => Fault::Peer,
        RegistryError::Exchange(_) => Fault::Transport,
    }
}
