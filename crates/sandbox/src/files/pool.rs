//! Hands that are kept for the next request: who gets one, who waits, which one goes.
//!
//! Invariant: no hand is idle while somebody waits who could use it or its place. Not here: what a
//! hand is.

use std::{
    collections::{HashMap, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use exec_env::filesystem::FileError;
use tokio::{sync::oneshot, time::Instant};

use crate::plan::Plan;

/// How many hands there may be, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// For one plan: more would wait for the same disk.
    pub of_one_plan: usize,
    /// In all: each takes memory.
    pub in_all: usize,
    /// Requests that may wait for one.
    pub waiting: usize,
    /// Watches: each has one of its own, beside those above.
    pub watches: usize,
    /// How long one is kept that nobody asks.
    pub idle: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            of_one_plan: 4,
            in_all: 16,
            waiting: 1024,
            watches: 64,
            idle: Duration::from_secs(60),
        }
    }
}

/// Hands by plan.
#[derive(Debug)]
pub(super) struct Pool<H: Send + 'static> {
    bounds: Bounds,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H: Send + 'static> {
    /// Hands, idle or not, and those that are being started.
    count: usize,
    plans: HashMap<Arc<Plan>, Kept<H>>,
    waiting: VecDeque<Waiting<H>>,
    /// A task waits to retire idle hands.
    sweeping: bool,
}

/// The hands of one plan.
#[derive(Debug)]
struct Kept<H: Send + 'static> {
    count: usize,
    /// The last is the one that was used last.
    idle: Vec<(H, Instant)>,
}

#[derive(Debug)]
struct Waiting<H: Send + 'static> {
    plan: Arc<Plan>,
    turn: oneshot::Sender<Lease<H>>,
}

impl<H: Send + 'static> Pool<H> {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            state: Mutex::new(State {
                count: 0,
                plans: HashMap::new(),
                waiting: VecDeque::new(),
                sweeping: false,
            }),
        })
    }

    /// Takes an idle hand, or the place of one that is to be started. Waits in line for either.
    ///
    /// # Errors
    /// Fails if too many wait.
    pub(super) async fn take(self: &Arc<Self>, plan: &Arc<Plan>) -> Result<Lease<H>, FileError> {
        let turn = match self.take_now(plan)? {
            Ok(lease) => return Ok(lease),
            Err(turn) => turn,
        };
        // The pool keeps the other end until it is used.
        let lost = |_| FileError::Host("place in line was lost".to_owned());
        turn.await.map_err(lost)
    }

    fn take_now(
        self: &Arc<Self>,
        plan: &Arc<Plan>,
    ) -> Result<Result<Lease<H>, oneshot::Receiver<Lease<H>>>, FileError> {
        let mut retired = None;
        let mut state = self.lock();
        if let Some(hand) = state.take_idle(plan) {
            return Ok(Ok(self.lease(plan, Some(hand))));
        }
        if state.of(plan) < self.bounds.of_one_plan {
            if state.count >= self.bounds.in_all {
                retired = state.retire_oldest();
            }
            if state.reserve(plan, &self.bounds) {
                drop(state);
                drop(retired);
                return Ok(Ok(self.lease(plan, None)));
            }
        }
        if state.waiting.len() >= self.bounds.waiting {
            // Those who gave up count no more.
            state.waiting.retain(|waiting| !waiting.turn.is_closed());
        }
        if state.waiting.len() >= self.bounds.waiting {
            let most = self.bounds.waiting;
            let text = format!("too many operations on files: {most} wait for a file helper");
            return Err(FileError::Host(text));
        }
        let (turn, wait) = oneshot::channel();
        let plan = Arc::clone(plan);
        state.waiting.push_back(Waiting { plan, turn });
        Ok(Err(wait))
    }

    /// Takes back a hand that can be used again.
    fn keep(self: &Arc<Self>, plan: &Arc<Plan>, hand: H) {
        let mut hand = hand;
        let mut state = self.lock();
        while let Some(place) = state.first_who_can_use(Some(plan), &self.bounds) {
            let Some(waiting) = state.waiting.remove(place) else {
                break;
            };
            if waiting.plan != *plan {
                state.release(plan);
                state.waiting.insert(place, waiting);
                self.grant(&mut state);
                // It ends when nobody holds the lock.
                drop(state);
                drop(hand);
                return;
            }
            match waiting.turn.send(self.lease(plan, Some(hand))) {
                Ok(()) => return,
                Err(lease) => match lease.into_hand() {
                    Some(back) => hand = back,
                    None => return,
                },
            }
        }
        let now = Instant::now();
        if let Some(kept) = state.plans.get_mut(plan) {
            kept.idle.push((hand, now));
        }
        if !mem::replace(&mut state.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self), now + self.bounds.idle));
        }
    }

    /// Gives the place of a hand that is gone to whoever waits.
    fn free(self: &Arc<Self>, plan: &Arc<Plan>) {
        let mut state = self.lock();
        state.release(plan);
        self.grant(&mut state);
    }

    /// Gives free places to those who wait, in their order.
    fn grant(self: &Arc<Self>, state: &mut State<H>) {
        while let Some(place) = state.first_who_can_use(None, &self.bounds) {
            let Some(Waiting { plan, turn }) = state.waiting.remove(place) else {
                return;
            };
            if !state.reserve(&plan, &self.bounds) {
                return;
            }
            if let Err(lease) = turn.send(self.lease(&plan, None)) {
                lease.into_hand();
                state.release(&plan);
            }
        }
    }

    /// Retires what was idle for too long. Returns when to look again.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut retired = Vec::new();
        let mut state = self.lock();
        let mut next: Option<Instant> = None;
        state.plans.retain(|_, kept| {
            let keep_from = kept
                .idle
                .partition_point(|(_, since)| *since + self.bounds.idle <= now);
            retired.extend(kept.idle.drain(..keep_from));
            kept.count -= keep_from;
            let oldest = kept.idle.first().map(|(_, since)| *since + self.bounds.idle);
            next = next.into_iter().chain(oldest).min();
            kept.count > 0
        });
        state.count -= retired.len();
        state.sweeping = next.is_some();
        next
    }

    fn lease(self: &Arc<Self>, plan: &Arc<Plan>, hand: Option<H>) -> Lease<H> {
        Lease(Some(Held {
            pool: Arc::clone(self),
            plan: Arc::clone(plan),
            hand,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State<H>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many hands there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.lock().count
    }

    /// What is to be known of the idle hands of a plan.
    #[cfg(test)]
    pub(super) fn idle<T>(&self, plan: &Arc<Plan>, what: impl Fn(&H) -> T) -> Vec<T> {
        let state = self.lock();
        let idle = state.plans.get(plan).map(|kept| &kept.idle[..]);
        let idle = idle.unwrap_or_default().iter();
        idle.map(|(hand, _)| what(hand)).collect()
    }
}

impl<H: Send + 'static> State<H> {
    fn of(&self, plan: &Arc<Plan>) -> usize {
        self.plans.get(plan).map_or(0, |kept| kept.count)
    }

    fn take_idle(&mut self, plan: &Arc<Plan>) -> Option<H> {
        let (hand, _) = self.plans.get_mut(plan)?.idle.pop()?;
        Some(hand)
    }

    /// Takes the hand that nobody has used for the longest time.
    fn retire_oldest(&mut self) -> Option<H> {
        let oldest = |(plan, kept): (&Arc<Plan>, &Kept<H>)| {
            let (_, since) = kept.idle.first()?;
            Some((*since, Arc::clone(plan)))
        };
        let (_, plan) = self
            .plans
            .iter()
            .filter_map(oldest)
            .min_by_key(|(since, _)| *since)?;
        let (hand, _) = self.plans.get_mut(&plan)?.idle.remove(0);
        self.release(&plan);
        Some(hand)
    }

    fn reserve(&mut self, plan: &Arc<Plan>, bounds: &Bounds) -> bool {
        if self.count >= bounds.in_all || self.of(plan) >= bounds.of_one_plan {
            return false;
        }
        self.count += 1;
        let kept = self.plans.entry(Arc::clone(plan)).or_insert_with(|| Kept {
            count: 0,
            idle: Vec::new(),
        });
        kept.count += 1;
        true
    }

    fn release(&mut self, plan: &Arc<Plan>) {
        self.count -= 1;
        if let Some(kept) = self.plans.get_mut(plan) {
            kept.count -= 1;
            if kept.count == 0 {
                self.plans.remove(plan);
            }
        }
    }

    /// Returns the place in line of the first who could use a hand of `plan`, or its place.
    fn first_who_can_use(&self, plan: Option<&Arc<Plan>>, bounds: &Bounds) -> Option<usize> {
        if plan.is_none() && self.count >= bounds.in_all {
            return None;
        }
        self.waiting.iter().position(|waiting| {
            plan == Some(&waiting.plan) || self.of(&waiting.plan) < bounds.of_one_plan
        })
    }
}

/// Retires hands as their time comes, until none is idle.
async fn sweep<H: Send + 'static>(pool: Weak<Pool<H>>, mut next: Instant) {
    loop {
        tokio::time::sleep_until(next).await;
        let Some(pool) = pool.upgrade() else {
            return;
        };
        match pool.expire(Instant::now()) {
            Some(later) => next = later,
            None => return,
        }
    }
}

/// A hand, or the place of one, that is somebody's for one request. If it is dropped, the hand ends.
pub(super) struct Lease<H: Send + 'static>(Option<Held<H>>);

struct Held<H: Send + 'static> {
    pool: Arc<Pool<H>>,
    plan: Arc<Plan>,
    hand: Option<H>,
}

impl<H: Send + 'static> Lease<H> {
    /// Returns the hand, if one was idle.
    pub(super) fn hand(&mut self) -> Option<&mut H> {
        self.0.as_mut()?.hand.as_mut()
    }

    /// Puts the hand that was started in its place.
    pub(super) fn put(&mut self, hand: H) {
        if let Some(held) = &mut self.0 {
            held.hand = Some(hand);
        }
    }

    /// Gives the hand back, to be used again.
    pub(super) fn keep(mut self) {
        match self.0.take() {
            Some(Held {
                pool,
                plan,
                hand: Some(hand),
            }) => pool.keep(&plan, hand),
            held => drop(Self(held)),
        }
    }

    /// Takes the hand out, and leaves what is counted as it is.
    fn into_hand(mut self) -> Option<H> {
        self.0.take()?.hand
    }
}

impl<H: Send + 'static> Drop for Lease<H> {
    fn drop(&mut self) {
        if let Some(Held { pool, plan, hand }) = self.0.take() {
            drop(hand);
            pool.free(&plan);
        }
    }
}

impl<H: Send + 'static> fmt::Debug for Lease<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
