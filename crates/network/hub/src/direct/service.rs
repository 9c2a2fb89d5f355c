//! The state that the parts of this module share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{AccessKeys, table::Table};
use crate::{
    principal::PrincipalName,
    registry::Services,
    store::{EnvironmentId, RegistrationId},
};

/// Registers direct executors and joins them with harnesses.
#[derive(Debug)]
pub struct Direct {
    pub(super) services: Services,
    pub(super) keys: Option<AccessKeys>,
    table: Mutex<Table>,
    /// Counts whenever an executor begins to wait, or is joined: harnesses look again.
    arrivals: watch::Sender<u64>,
}

/// What is known of a direct environment, for lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// Its current registration.
    pub registration: RegistrationId,
    /// Whether its executor is connected.
    pub online: bool,
}

impl Direct {
    /// Takes what it works with. Without keys, only tokens count.
    pub fn new(services: Services, keys: Option<AccessKeys>) -> Self {
        Self {
            services,
            keys,
            table: Mutex::default(),
            arrivals: watch::Sender::new(0),
        }
    }

    /// What this process knows of an environment of `owner`. `None`: it has not been registered
    /// here since the start, or had to make room.
    pub fn find(&self, environment: &EnvironmentId, owner: &PrincipalName) -> Option<Listed> {
        let table = self.table();
        let slot = table.get(environment, owner)?;
        Some(Listed {
            registration: slot.registration.clone(),
            online: slot.is_online(),
        })
    }

    /// Forgets a registration and closes its sockets. False: there was none.
    pub fn remove(&self, environment: &EnvironmentId) -> bool {
        self.table().remove(environment)
    }

    /// Never held across a wait.
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(&self) {
        self.arrivals
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    pub(super) fn arrivals(&self) -> watch::Receiver<u64> {
        self.arrivals.subscribe()
    }
}
