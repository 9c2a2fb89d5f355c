//! When a driver is to be woken.

use std::{pin::Pin, task::Context};

use tokio::time::{Instant, Sleep, sleep_until};

/// Wakes at or before the time it was set to. Deadlines of streams move with every frame, nearly
/// always to later: then the clock is left alone, and whoever is woken too early sets it again.
#[derive(Debug, Default)]
pub(super) struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Sets it to a time that is not over yet.
    pub(super) fn set(&mut self, at: Instant, cx: &mut Context<'_>) {
        let timer = self.0.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if at < timer.deadline() {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            timer.as_mut().reset(at);
            if at <= Instant::now() {
                cx.waker().wake_by_ref();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll, time::Duration};

    use super::*;

    /// Waits until a driver that wants to be woken at `at` is.
    async fn woken(alarm: &mut Alarm, at: Instant) -> Duration {
        let start = Instant::now();
        let mut is_first = true;
        poll_fn(|cx| {
            if !std::mem::take(&mut is_first) {
                return Poll::Ready(());
            }
            alarm.set(at, cx);
            Poll::Pending
        })
        .await;
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn it_wakes_in_time_and_at_most_once_too_early() {
        let mut alarm = Alarm::default();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut seconds = async |at| woken(&mut alarm, after(at)).await.as_secs();
        assert_eq!(seconds(10).await, 10);
        // Set to later and then to earlier: it is the earlier that counts.
        let set = poll_fn(|cx| {
            alarm.set(after(30), cx);
            alarm.set(after(20), cx);
            alarm.set(after(40), cx);
            Poll::Ready(())
        });
        set.await;
        let mut seconds = async |at| woken(&mut alarm, after(at)).await.as_secs();
        assert_eq!(seconds(40).await, 10, "too early");
        assert_eq!(seconds(40).await, 20);
    }
}
