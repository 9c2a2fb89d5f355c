//! Memory budget for incomplete large messages, shared by the connections of a listener.
//!
//! Invariant: a message reserves its maximum size before it uses more than a small part of it, so
//! two incomplete messages never wait for each other. A message that holds its reservation too long
//! while others wait fails.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep_until},
};

/// How often an overdue message checks whether others wait.
const OVERDUE_CHECK: Duration = Duration::from_secs(1);

/// Limits for incomplete large messages of all connections.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MessageBudgetLimits {
    /// Maximum reserved bytes. A larger message reserves all of them.
    pub total_bytes: usize,
    /// Minimum time that a message may take while others wait.
    pub base_timeout: Duration,
    /// Required throughput beyond that time.
    pub bytes_per_second: usize,
}

impl Default for MessageBudgetLimits {
    /// Allows two messages of maximum size, at 2 Mbit/s.
    fn default() -> Self {
        Self {
            total_bytes: 128 << 20,
            base_timeout: Duration::from_secs(10),
            bytes_per_second: 256 << 10,
        }
    }
}

/// The budget shared by the connections of a listener.
#[derive(Clone, Debug)]
pub struct MessageBudget(Arc<BudgetState>);

#[derive(Debug)]
struct BudgetState {
    limits: MessageBudgetLimits,
    free: Arc<Semaphore>,
    /// Number of messages waiting for a reservation.
    waiting: AtomicUsize,
}

impl MessageBudget {
    /// Creates a budget.
    pub fn new(limits: MessageBudgetLimits) -> Self {
        Self(Arc::new(BudgetState {
            limits,
            free: Arc::new(Semaphore::new(limits.total_bytes)),
            waiting: AtomicUsize::new(0),
        }))
    }
}

/// Reservation of one connection.
#[derive(Default)]
pub(super) enum MessageReservation {
    #[default]
    None,
    Waiting {
        permit: BoxFuture<'static, Option<OwnedSemaphorePermit>>,
        bytes: usize,
        _waiting: WaitingGuard,
    },
    Held {
        _permit: Option<OwnedSemaphorePermit>,
        bytes: usize,
        overdue: Pin<Box<Sleep>>,
    },
}

/// The message blocks others and takes too long.
#[derive(Debug)]
pub(super) struct ReservationOverdue;

impl MessageReservation {
    /// Reserves `bytes` for the incoming message. Pending while other messages hold the budget.
    pub(super) fn poll_reserve(
        &mut self,
        budget: &MessageBudget,
        bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), ReservationOverdue>> {
        loop {
            match self {
                Self::Held {
                    bytes: held,
                    overdue,
                    ..
                } if *held >= bytes => {
                    while overdue.as_mut().poll(cx).is_ready() {
                        if budget.0.waiting.load(Ordering::Relaxed) > 0 {
                            return Poll::Ready(Err(ReservationOverdue));
                        }
                        overdue.as_mut().reset(Instant::now() + OVERDUE_CHECK);
                    }
                    return Poll::Ready(Ok(()));
                }
                Self::Waiting {
                    permit,
                    bytes: wanted,
                    ..
                } if *wanted >= bytes => {
                    let permit = ready!(permit.as_mut().poll(cx));
                    let (bytes, limits) = (*wanted, &budget.0.limits);
                    let arriving = bytes.div_ceil(limits.bytes_per_second.max(1));
                    let timeout = limits.base_timeout + Duration::from_secs(arriving as u64);
                    *self = Self::Held {
                        _permit: permit,
                        bytes,
                        overdue: Box::pin(sleep_until(Instant::now() + timeout)),
                    };
                }
                Self::None | Self::Held { .. } | Self::Waiting { .. } => {
                    // Release first: memory held while waiting for more could be what another
                    // message waits for.
                    *self = Self::None;
                    let shared = &budget.0;
                    let amount = bytes.min(shared.limits.total_bytes);
                    let amount = u32::try_from(amount).unwrap_or(u32::MAX);
                    let free = Arc::clone(&shared.free);
                    *self = Self::Waiting {
                        // The semaphore is never closed.
                        permit: Box::pin(async move { free.acquire_many_owned(amount).await.ok() }),
                        bytes,
                        _waiting: WaitingGuard::new(shared),
                    };
                }
            }
        }
    }
}

/// Counts a waiting message.
pub(super) struct WaitingGuard(Arc<BudgetState>);

impl WaitingGuard {
    fn new(shared: &Arc<BudgetState>) -> Self {
        shared.waiting.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
