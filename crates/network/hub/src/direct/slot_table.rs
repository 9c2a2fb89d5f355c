//! Registered direct environments, with waiting and joined executors. Bounded; no call blocks.
//! Elsewhere: ownership, which is in the store. A dropped or stale slot does not affect it.

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
const PAST: usize = 8;

/// Hands the websocket of a harness to the task of an executor.
pub(super) type Handover = oneshot::Sender<Link>;

/// All direct environments of this process.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<EnvironmentId, Slot>);

#[derive(Debug)]
pub(super) struct Slot {
    /// Principal that registered. If the store now has another owner, nothing is joined here.
    pub(super) owner: PrincipalName,
    pub(super) registration: RegistrationId,
    past: VecDeque<RegistrationId>,
    seat: Option<Seat>,
}

/// The websocket of an executor.
#[derive(Debug)]
struct Seat {
    id: SeatId,
    /// Closes the websocket.
    stop: Arc<Notify>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not ready for a harness yet.
    Between,
    Waiting(Handover),
    /// Reserved for a harness of this principal that is still completing its upgrade.
    Promised(PrincipalName),
    /// Joined with a harness of this principal.
    Joined(PrincipalName),
}

/// Identifies one websocket of an executor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SeatId(Uuid);

/// The table has no capacity for another environment.
#[derive(Debug)]
pub(super) struct Full;

/// Why an executor's websocket is rejected.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SitError {
    /// A newer registration has replaced this one.
    Superseded,
    /// The registration is unknown; the hub may have restarted.
    Unknown,
}

/// Result of looking for an executor.
#[derive(Debug)]
pub(super) enum Found {
    /// A waiting executor, now reserved for this harness.
    Executor(Handover),
    /// No executor yet.
    Nobody,
    /// An executor joined with a harness of the same principal, which may be closed.
    Mine(Arc<Notify>),
    /// An executor joined with another principal.
    Busy,
}

impl Table {
    /// Makes a registration current and closes the executor of the previous one.
    pub(super) fn register(
        &mut self,
        environment: EnvironmentId,
        owner: PrincipalName,
        registration: RegistrationId,
    ) -> Result<(), Full> {
        // A slot of another principal is stale: its executor must not serve this one.
        if self.get(&environment, &owner).is_none() {
            self.remove(&environment);
        }
        if let Some(slot) = self.0.get_mut(&environment) {
            slot.past
                .push_back(std::mem::replace(&mut slot.registration, registration));
            if slot.past.len() > PAST {
                slot.past.pop_front();
            }
            if let Some(seat) = slot.seat.take() {
                seat.stop.notify_one();
            }
            return Ok(());
        }
        if self.0.len() >= CAPACITY {
            // Executors without websocket get 409 and register again.
            let empty =
                |(id, slot): (&EnvironmentId, &Slot)| slot.seat.is_none().then(|| id.clone());
            let unused = self.0.iter().find_map(empty).ok_or(Full)?;
            self.0.remove(&unused);
        }
        let slot = Slot {
            owner,
            registration,
            past: VecDeque::new(),
            seat: None,
        };
        self.0.insert(environment, slot);
        Ok(())
    }

    /// Checks whether a registration may open its websocket, and returns its slot.
    pub(super) fn check(
        &self,
        environment: &EnvironmentId,
        registration: &str,
    ) -> Result<&Slot, SitError> {
        let slot = self.0.get(environment).ok_or(SitError::Unknown)?;
        if slot.registration.as_str() == registration {
            Ok(slot)
        } else if slot.past.iter().any(|past| past.as_str() == registration) {
            Err(SitError::Superseded)
        } else {
            Err(SitError::Unknown)
        }
    }

    /// Attaches an executor's websocket, replacing any previous one.
    pub(super) fn sit(
        &mut self,
        environment: &EnvironmentId,
        registration: &RegistrationId,
    ) -> Option<(SeatId, Arc<Notify>)> {
        let slot = self.0.get_mut(environment)?;
        if slot.registration != *registration {
            return None;
        }
        let (id, stop) = (SeatId(Uuid::new_v4()), Arc::new(Notify::new()));
        let seat = Seat {
            id,
            stop: Arc::clone(&stop),
            state: State::Between,
        };
        if let Some(before) = slot.seat.replace(seat) {
            before.stop.notify_one();
        }
        Some((id, stop))
    }

    /// Makes the executor available to harnesses. Returns false if another websocket replaced it.
    pub(super) fn wait(
        &mut self,
        environment: &EnvironmentId,
        id: SeatId,
        handover: Handover,
    ) -> bool {
        let seat = self.seat(environment, id);
        let waits = seat.is_some();
        if let Some(seat) = seat {
            seat.state = State::Waiting(handover);
        }
        waits
    }

    /// Looks for an executor of the owner, and reserves it if it waits.
    pub(super) fn find(
        &mut self,
        environment: &EnvironmentId,
        owner: &PrincipalName,
        principal: &PrincipalName,
    ) -> Found {
        let slot = self.0.get_mut(environment);
        let slot = slot.filter(|slot| slot.owner == *owner);
        let Some(seat) = slot.and_then(|slot| slot.seat.as_mut()) else {
            return Found::Nobody;
        };
        match &seat.state {
            State::Between | State::Promised(_) => return Found::Nobody,
            State::Joined(other) if other == principal => {
                return Found::Mine(Arc::clone(&seat.stop));
            }
            State::Joined(_) => return Found::Busy,
            State::Waiting(_) => {}
        }
        match std::mem::replace(&mut seat.state, State::Promised(principal.clone())) {
            State::Waiting(handover) => Found::Executor(handover),
            State::Between | State::Promised(_) | State::Joined(_) => Found::Nobody,
        }
    }

    /// Marks an executor as joined: the reserved harness has arrived.
    pub(super) fn join(&mut self, environment: &EnvironmentId, id: SeatId) {
        if let Some(seat) = self.seat(environment, id)
            && let State::Promised(principal) = &seat.state
        {
            seat.state = State::Joined(principal.clone());
        }
    }

    /// Detaches an executor's websocket, unless another one has replaced it.
    pub(super) fn leave(&mut self, environment: &EnvironmentId, id: SeatId) {
        if self.seat(environment, id).is_some()
            && let Some(slot) = self.0.get_mut(environment)
        {
            slot.seat = None;
        }
    }

    /// Removes an environment. Returns whether it existed.
    pub(super) fn remove(&mut self, environment: &EnvironmentId) -> bool {
        let slot = self.0.remove(environment);
        if let Some(seat) = slot.as_ref().and_then(|slot| slot.seat.as_ref()) {
            seat.stop.notify_one();
        }
        slot.is_some()
    }

    /// Returns the slot that `owner` registered.
    pub(super) fn get(&self, environment: &EnvironmentId, owner: &PrincipalName) -> Option<&Slot> {
        let slot = self.0.get(environment);
        slot.filter(|slot| slot.owner == *owner)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn seat(&mut self, environment: &EnvironmentId, id: SeatId) -> Option<&mut Seat> {
        let seat = self.0.get_mut(environment)?.seat.as_mut()?;
        (seat.id == id).then_some(seat)
    }
}

impl Slot {
    /// Returns whether an executor's websocket is attached.
    pub(super) fn is_online(&self) -> bool {
        self.seat.is_some()
    }
}
