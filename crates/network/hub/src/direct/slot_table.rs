//! Registered direct environments, with waiting and joined executors. Bounded; no call blocks.
//! Elsewhere: ownership, which is in the store. A dropped or stale entry does not affect it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use exec_transport::link::Link;
use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use crate::{
    principal::PrincipalName,
    store::{EnvironmentId, RegistrationId},
};

/// Direct environments that a process tracks. Each may hold two websockets.
pub(super) const CAPACITY: usize = 4096;
/// Past registrations remembered per environment.
const PAST_REGISTRATIONS: usize = 8;

/// Hands the websocket of a harness to the task of an executor.
pub(super) type Handover = oneshot::Sender<Link>;

/// All direct environments of this process.
#[derive(Debug, Default)]
pub(super) struct SlotTable(BTreeMap<EnvironmentId, DirectEnvironment>);

#[derive(Debug)]
pub(super) struct DirectEnvironment {
    /// Principal that registered. If the store now has another owner, nothing is joined here.
    pub(super) owner: PrincipalName,
    pub(super) registration: RegistrationId,
    past: VecDeque<RegistrationId>,
    slot: Option<DirectSlot>,
}

/// The websocket of an executor.
#[derive(Debug)]
struct DirectSlot {
    id: SlotId,
    /// Closes the websocket.
    stop: Arc<Notify>,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    /// Not ready for a harness yet.
    Preparing,
    Waiting(Handover),
    /// Reserved for a harness of this principal that is still completing its upgrade.
    Reserved(PrincipalName),
    /// Joined with a harness of this principal.
    Joined(PrincipalName),
}

/// Identifies one websocket of an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SlotId(Uuid);

/// The table has no capacity for another environment.
#[derive(Debug)]
pub(super) struct SlotTableFull;

/// Why an executor's websocket is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SlotError {
    /// A newer registration has replaced this one.
    Superseded,
    /// The registration is unknown; the hub may have restarted.
    Unknown,
}

/// Result of looking for an executor.
#[derive(Debug)]
pub(super) enum ExecutorLookup {
    /// A waiting executor, now reserved for this harness.
    Executor(Handover),
    /// No executor yet.
    NotReady,
    /// An executor joined with a harness of the same principal, which may be closed.
    Replaceable(Arc<Notify>),
    /// An executor joined with another principal.
    Busy,
}

impl SlotTable {
    /// Makes a registration current and closes the executor of the previous one.
    pub(super) fn register(
        &mut self,
        environment: EnvironmentId,
        owner: PrincipalName,
        registration: RegistrationId,
    ) -> Result<(), SlotTableFull> {
        // An entry of another principal is stale: its executor must not serve this one.
        if self.get(&environment, &owner).is_none() {
            self.remove(&environment);
        }
        if let Some(entry) = self.0.get_mut(&environment) {
            entry
                .past
                .push_back(std::mem::replace(&mut entry.registration, registration));
            if entry.past.len() > PAST_REGISTRATIONS {
                entry.past.pop_front();
            }
            if let Some(slot) = entry.slot.take() {
                slot.stop.notify_one();
            }
            return Ok(());
        }
        if self.0.len() >= CAPACITY {
            // Executors without websocket get 409 and register again.
            let empty = |(id, entry): (&EnvironmentId, &DirectEnvironment)| {
                entry.slot.is_none().then(|| id.clone())
            };
            let unused = self.0.iter().find_map(empty).ok_or(SlotTableFull)?;
            self.0.remove(&unused);
        }
        let entry = DirectEnvironment {
            owner,
            registration,
            past: VecDeque::new(),
            slot: None,
        };
        self.0.insert(environment, entry);
        Ok(())
    }

    /// Checks whether a registration may open its websocket, and returns its entry.
    pub(super) fn check(
        &self,
        environment: &EnvironmentId,
        registration: &str,
    ) -> Result<&DirectEnvironment, SlotError> {
        let entry = self.0.get(environment).ok_or(SlotError::Unknown)?;
        if entry.registration.as_str() == registration {
            Ok(entry)
        } else if entry.past.iter().any(|past| past.as_str() == registration) {
            Err(SlotError::Superseded)
        } else {
            Err(SlotError::Unknown)
        }
    }

    /// Attaches an executor's websocket, replacing any previous one.
    pub(super) fn attach(
        &mut self,
        environment: &EnvironmentId,
        registration: &RegistrationId,
    ) -> Option<(SlotId, Arc<Notify>)> {
        let entry = self.0.get_mut(environment)?;
        if entry.registration != *registration {
            return None;
        }
        let (id, stop) = (SlotId(Uuid::new_v4()), Arc::new(Notify::new()));
        let slot = DirectSlot {
            id,
            stop: Arc::clone(&stop),
            state: SlotState::Preparing,
        };
        if let Some(before) = entry.slot.replace(slot) {
            before.stop.notify_one();
        }
        Some((id, stop))
    }

    /// Makes the executor available to harnesses. Returns false if another websocket replaced it.
    pub(super) fn wait_for_harness(
        &mut self,
        environment: &EnvironmentId,
        id: SlotId,
        handover: Handover,
    ) -> bool {
        let slot = self.slot(environment, id);
        let waits = slot.is_some();
        if let Some(slot) = slot {
            slot.state = SlotState::Waiting(handover);
        }
        waits
    }

    /// Looks for an executor of the owner, and reserves it if it waits.
    pub(super) fn find(
        &mut self,
        environment: &EnvironmentId,
        owner: &PrincipalName,
        principal: &PrincipalName,
    ) -> ExecutorLookup {
        let entry = self.0.get_mut(environment);
        let entry = entry.filter(|entry| entry.owner == *owner);
        let Some(slot) = entry.and_then(|entry| entry.slot.as_mut()) else {
            return ExecutorLookup::NotReady;
        };
        match &slot.state {
            SlotState::Preparing | SlotState::Reserved(_) => return ExecutorLookup::NotReady,
            SlotState::Joined(other) if other == principal => {
                return ExecutorLookup::Replaceable(Arc::clone(&slot.stop));
            }
            SlotState::Joined(_) => return ExecutorLookup::Busy,
            SlotState::Waiting(_) => {}
        }
        match std::mem::replace(&mut slot.state, SlotState::Reserved(principal.clone())) {
            SlotState::Waiting(handover) => ExecutorLookup::Executor(handover),
            SlotState::Preparing | SlotState::Reserved(_) | SlotState::Joined(_) => {
                ExecutorLookup::NotReady
            }
        }
    }

    /// Marks an executor as joined: the reserved harness has arrived.
    pub(super) fn join(&mut self, environment: &EnvironmentId, id: SlotId) {
        if let Some(slot) = self.slot(environment, id)
            && let SlotState::Reserved(principal) = &slot.state
        {
            slot.state = SlotState::Joined(principal.clone());
        }
    }

    /// Detaches an executor's websocket, unless another one has replaced it.
    pub(super) fn detach(&mut self, environment: &EnvironmentId, id: SlotId) {
        if self.slot(environment, id).is_some()
            && let Some(entry) = self.0.get_mut(environment)
        {
            entry.slot = None;
        }
    }

    /// Removes an environment. Returns whether it existed.
    pub(super) fn remove(&mut self, environment: &EnvironmentId) -> bool {
        let entry = self.0.remove(environment);
        if let Some(slot) = entry.as_ref().and_then(|entry| entry.slot.as_ref()) {
            slot.stop.notify_one();
        }
        entry.is_some()
    }

    /// Returns the entry that `owner` registered.
    pub(super) fn get(
        &self,
        environment: &EnvironmentId,
        owner: &PrincipalName,
    ) -> Option<&DirectEnvironment> {
        let entry = self.0.get(environment);
        entry.filter(|entry| entry.owner == *owner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn slot(&mut self, environment: &EnvironmentId, id: SlotId) -> Option<&mut DirectSlot> {
        let slot = self.0.get_mut(environment)?.slot.as_mut()?;
        (slot.id == id).then_some(slot)
    }
}

impl DirectEnvironment {
    /// Returns whether an executor's websocket is attached.
    pub(super) fn is_online(&self) -> bool {
        self.slot.is_some()
    }
}
