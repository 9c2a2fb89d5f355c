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

/// A direct environment, for lists.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Listed {
    /// The environment.
    pub environment: EnvironmentId,
    /// Whose it is.
    pub owner: PrincipalName,
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

    /// Who owns a direct environment. `None`: it is not registered here.
    pub fn owner(&self, environment: &EnvironmentId) -> Option<PrincipalName> {
        self.table().owner(environment).cloned()
    }

    /// All direct environments of this process, in order.
    pub fn list(&self) -> Vec<Listed> {
        let table = self.table();
        let listed = table.iter().map(|(environment, slot)| Listed {
            environment: environment.clone(),
            owner: slot.owner.clone(),
            registration: slot.registration.clone(),
            online: slot.is_online(),
        });
        listed.collect()
    }

    /// Forgets a direct environment and closes its sockets. False: there was none.
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
