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

use super::worker_key::Key;

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
    /// How long one is kept at all: what is mounted on the host since, it does not see.
    pub life: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            of_one_plan: 4,
            in_all: 16,
            waiting: 1024,
            watches: 64,
            idle: Duration::from_secs(60),
            life: Duration::from_secs(120),
        }
    }
}

/// Hands by key.
#[derive(Debug)]
pub(super) struct Pool<H: Send + 'static> {
    bounds: Bounds,
    state: Mutex<State<H>>,
}

#[derive(Debug)]
struct State<H: Send + 'static> {
    /// Hands, idle or not, and those that are being started.
    count: usize,
    kept: HashMap<Arc<Key>, Kept<H>>,
    waiting: VecDeque<Waiting<H>>,
    /// A task waits to retire idle hands.
    sweeping: bool,
}

/// The hands of one key.
#[derive(Debug)]
struct Kept<H: Send + 'static> {
    count: usize,
    /// The last is the one that was used last.
    idle: Vec<(H, Instant)>,
}

#[derive(Debug)]
struct Waiting<H: Send + 'static> {
    key: Arc<Key>,
    turn: oneshot::Sender<Lease<H>>,
}

impl<H: Send + 'static> Pool<H> {
    pub(super) fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            state: Mutex::new(State {
                count: 0,
                kept: HashMap::new(),
                waiting: VecDeque::new(),
                sweeping: false,
            }),
        })
    }

    /// Takes an idle hand, or the place of one that is to be started. Waits in line for either.
    ///
    /// # Errors
    /// Fails if too many wait.
    pub(super) async fn take(self: &Arc<Self>, key: &Arc<Key>) -> Result<Lease<H>, FileError> {
        let turn = match self.take_now(key)? {
            Ok(lease) => return Ok(lease),
            Err(turn) => turn,
        };
        // The pool keeps the other end until it is used.
        let lost = |_| FileError::Host("place in line was lost".to_owned());
        let mut lease = turn.await.map_err(lost)?;
        if let Some(held) = &mut lease.0 {
            held.waited = true;
        }
        Ok(lease)
    }

    fn take_now(
        self: &Arc<Self>,
        key: &Arc<Key>,
    ) -> Result<Result<Lease<H>, oneshot::Receiver<Lease<H>>>, FileError> {
        let mut retired = None;
        let mut state = self.lock();
        if let Some(hand) = state.take_idle(key) {
            return Ok(Ok(self.lease(key, Some(hand))));
        }
        if state.of(key) < self.bounds.of_one_plan {
            if state.count >= self.bounds.in_all {
                retired = state.retire_oldest();
            }
            if state.reserve(key, &self.bounds) {
                drop(state);
                drop(retired);
                return Ok(Ok(self.lease(key, None)));
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
        let key = Arc::clone(key);
        state.waiting.push_back(Waiting { key, turn });
        Ok(Err(wait))
    }

    /// Takes back a hand that can be used again.
    fn keep(self: &Arc<Self>, key: &Arc<Key>, hand: H) {
        let mut hand = hand;
        let mut state = self.lock();
        while let Some(place) = state.first_who_can_use(Some(key), &self.bounds) {
            let Some(waiting) = state.waiting.remove(place) else {
                break;
            };
            if waiting.key != *key {
                state.release(key);
                state.waiting.insert(place, waiting);
                self.grant(&mut state);
                // It ends when nobody holds the lock.
                drop(state);
                drop(hand);
                return;
            }
            match waiting.turn.send(self.lease(key, Some(hand))) {
                Ok(()) => return,
                Err(lease) => match lease.into_hand() {
                    Some(back) => hand = back,
                    None => return,
                },
            }
        }
        let now = Instant::now();
        if let Some(kept) = state.kept.get_mut(key) {
            kept.idle.push((hand, now));
        }
        if !mem::replace(&mut state.sweeping, true) {
            tokio::spawn(sweep(Arc::downgrade(self), now + self.bounds.idle));
        }
    }

    /// Gives the place of a hand that is gone to whoever waits.
    fn free(self: &Arc<Self>, key: &Arc<Key>) {
        let mut state = self.lock();
        state.release(key);
        self.grant(&mut state);
    }

    /// Gives free places to those who wait, in their order.
    fn grant(self: &Arc<Self>, state: &mut State<H>) {
        while let Some(place) = state.first_who_can_use(None, &self.bounds) {
            let Some(Waiting { key, turn }) = state.waiting.remove(place) else {
                return;
            };
            if !state.reserve(&key, &self.bounds) {
                return;
            }
            if let Err(lease) = turn.send(self.lease(&key, None)) {
                lease.into_hand();
                state.release(&key);
            }
        }
    }

    /// Retires what was idle for too long. Returns when to look again.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut retired = Vec::new();
        let mut state = self.lock();
        let mut next: Option<Instant> = None;
        state.kept.retain(|_, kept| {
            let keep_from = kept
                .idle
                .partition_point(|(_, since)| *since + self.bounds.idle <= now);
            retired.extend(kept.idle.drain(..keep_from));
            kept.count -= keep_from;
            let oldest = kept
                .idle
                .first()
                .map(|(_, since)| *since + self.bounds.idle);
            next = next.into_iter().chain(oldest).min();
            kept.count > 0
        });
        state.count -= retired.len();
        state.sweeping = next.is_some();
        next
    }

    fn lease(self: &Arc<Self>, key: &Arc<Key>, hand: Option<H>) -> Lease<H> {
        Lease(Some(Held {
            pool: Arc::clone(self),
            key: Arc::clone(key),
            hand,
            waited: false,
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

    /// What is to be known of the idle hands of a key.
    #[cfg(test)]
    pub(super) fn idle<T>(&self, key: &Arc<Key>, what: impl Fn(&H) -> T) -> Vec<T> {
        let state = self.lock();
        let idle = state.kept.get(key).map(|kept| &kept.idle[..]);
        let idle = idle.unwrap_or_default().iter();
        idle.map(|(hand, _)| what(hand)).collect()
    }
}

impl<H: Send + 'static> State<H> {
    fn of(&self, key: &Arc<Key>) -> usize {
        self.kept.get(key).map_or(0, |kept| kept.count)
    }

    fn take_idle(&mut self, key: &Arc<Key>) -> Option<H> {
        let (hand, _) = self.kept.get_mut(key)?.idle.pop()?;
        Some(hand)
    }

    /// Takes the hand that nobody has used for the longest time.
    fn retire_oldest(&mut self) -> Option<H> {
        let oldest = |(key, kept): (&Arc<Key>, &Kept<H>)| {
            let (_, since) = kept.idle.first()?;
            Some((*since, Arc::clone(key)))
        };
        let (_, key) = self
            .kept
            .iter()
            .filter_map(oldest)
            .min_by_key(|(since, _)| *since)?;
        let (hand, _) = self.kept.get_mut(&key)?.idle.remove(0);
        self.release(&key);
        Some(hand)
    }

    fn reserve(&mut self, key: &Arc<Key>, bounds: &Bounds) -> bool {
        if self.count >= bounds.in_all || self.of(key) >= bounds.of_one_plan {
            return false;
        }
        self.count += 1;
        let kept = self.kept.entry(Arc::clone(key)).or_insert_with(|| Kept {
            count: 0,
            idle: Vec::new(),
        });
        kept.count += 1;
        true
    }

    fn release(&mut self, key: &Arc<Key>) {
        self.count -= 1;
        if let Some(kept) = self.kept.get_mut(key) {
            kept.count -= 1;
            if kept.count == 0 {
                self.kept.remove(key);
            }
        }
    }

    /// Returns the place in line of the first who could use a hand of `key`, or its place.
    fn first_who_can_use(&self, key: Option<&Arc<Key>>, bounds: &Bounds) -> Option<usize> {
        if key.is_none() && self.count >= bounds.in_all {
            return None;
        }
        self.waiting.iter().position(|waiting| {
            key == Some(&waiting.key) || self.of(&waiting.key) < bounds.of_one_plan
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
    key: Arc<Key>,
    hand: Option<H>,
    waited: bool,
}

impl<H: Send + 'static> Lease<H> {
    /// Returns the hand, if one was idle.
    pub(super) fn hand(&mut self) -> Option<&mut H> {
        self.0.as_mut()?.hand.as_mut()
    }

    /// Tells whether it was waited for: meanwhile much can have happened.
    pub(super) fn was_waited_for(&self) -> bool {
        self.0.as_ref().is_some_and(|held| held.waited)
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
                key,
                hand: Some(hand),
                ..
            }) => pool.keep(&key, hand),
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
        if let Some(Held {
            pool, key, hand, ..
        }) = self.0.take()
        {
            drop(hand);
            pool.free(&key);
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
