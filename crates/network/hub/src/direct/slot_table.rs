//! Who is registered, who waits, and who is joined. Bounded; no call in here waits.
//! Not here: whose an environment is. That is in the store, and a slot that is dropped or out of date
//! changes nothing about it.

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

/// How many direct environments a process remembers. Each may hold two sockets.
pub(super) const CAPACITY: usize = 4096;
/// How many registrations of the past are known again, of each environment.
const PAST: usize = 8;

/// How a harness gets to an executor: its socket is handed over.
pub(super) type Handover = oneshot::Sender<Link>;

/// All direct environments.
#[derive(Debug, Default)]
pub(super) struct Table(BTreeMap<EnvironmentId, Slot>);

#[derive(Debug)]
pub(super) struct Slot {
    /// Who registered. The store may know another owner by now: then nobody is joined here.
    pub(super) owner: PrincipalName,
    pub(super) registration: RegistrationId,
    past: VecDeque<RegistrationId>,
    seat: Option<Seat>,
}

/// An executor's socket.
#[derive(Debug)]
struct Seat {
    id: SeatId,
    /// Ends it.
    stop: Arc<Notify>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not ready for a harness yet.
    Between,
    Waiting(Handover),
    /// A harness of this principal was agreed to; its socket is on the way, or not.
    Promised(PrincipalName),
    /// Joined with a harness of this principal.
    Joined(PrincipalName),
}

/// Tells one socket from the next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct SeatId(Uuid);

/// There is no room for another environment.
#[derive(Debug)]
pub(super) struct Full;

/// Why an executor's socket is not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum SitError {
    /// Its registration is of the past: another executor has taken over.
    Superseded,
    /// Its registration is not known: the hub may have been restarted.
    Unknown,
}

/// What a harness finds.
#[derive(Debug)]
pub(super) enum Found {
    /// An executor that waits. It is this harness's now.
    Executor(Handover),
    /// Nobody, as yet.
    Nobody,
    /// An executor that is joined with a harness of the same principal, which may be told to go.
    Mine(Arc<Notify>),
    /// An executor that is joined with somebody else.
    Busy,
}

impl Table {
    /// Makes a registration the current one, and tells the executor of the one before to go.
    pub(super) fn register(
        &mut self,
        environment: EnvironmentId,
        owner: PrincipalName,
        registration: RegistrationId,
    ) -> Result<(), Full> {
        // What another principal left behind is over: its executor must not serve this one.
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
            // Those without a socket are refused with 409 and come back.
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

    /// Whether a registration may open its socket, and whose it is.
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

    /// Takes an executor's socket, in place of any before.
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

    /// Waits for a harness. False: another socket has taken the place.
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

    /// Looks for an executor of the owner. One that waits is taken.
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

    /// The harness that was promised has come.
    pub(super) fn join(&mut self, environment: &EnvironmentId, id: SeatId) {
        if let Some(seat) = self.seat(environment, id)
            && let State::Promised(principal) = &seat.state
        {
            seat.state = State::Joined(principal.clone());
        }
    }

    /// An executor's socket is gone. Nothing happens when another has its place.
    pub(super) fn leave(&mut self, environment: &EnvironmentId, id: SeatId) {
        if self.seat(environment, id).is_some()
            && let Some(slot) = self.0.get_mut(environment)
        {
            slot.seat = None;
        }
    }

    /// Forgets an environment. False: there was none.
    pub(super) fn remove(&mut self, environment: &EnvironmentId) -> bool {
        let slot = self.0.remove(environment);
        if let Some(seat) = slot.as_ref().and_then(|slot| slot.seat.as_ref()) {
            seat.stop.notify_one();
        }
        slot.is_some()
    }

    /// What `owner` registered.
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
    /// Whether an executor's socket is there.
    pub(super) fn is_online(&self) -> bool {
        self.seat.is_some()
    }
}
