//! Asking for the first ticket, patiently.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{api::Connected, delay::RegistryDelay, http::ExchangeError, registry::RegistryError};

/// How long one request may take. It is less than for others: most of the time a second one helps.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(6);
/// Requests after the first.
const MAX_RETRIES: u32 = 4;
/// How long all of it may take: somebody waits for it.
const BUDGET: Duration = Duration::from_secs(14);

/// Asks until there is a ticket, or the patience is over.
pub(super) async fn patiently<F>(
    delay: &RegistryDelay,
    mut ask: impl FnMut() -> F,
) -> Result<Connected, RegistryError>
where
    F: Future<Output = Result<Connected, RegistryError>>,
{
    let deadline = Instant::now() + BUDGET;
    let mut attempt = 0;
    loop {
        let asked = Instant::now();
        let until = deadline.min(asked + REQUEST_TIMEOUT);
        let answer = timeout_at(until, ask()).await;
        let late = |_| Err(ExchangeError::Timeout(until - asked).into());
        let error = match answer.unwrap_or_else(late) {
            Err(error) if error.may_connect_again() => error,
            settled => return settled,
        };
        let next = Instant::now() + delay.after(attempt);
        if attempt == MAX_RETRIES || next >= deadline {
            return Err(error);
        }
        tracing::debug!(%error, attempt, "no ticket yet");
        sleep_until(next).await;
        attempt += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, future::pending};

    use exec_relay::identity::Identity;

    use super::*;
    use crate::api::{Code, SECURITY_PROFILE, Secret};

    fn offline() -> RegistryError {
        RegistryError::Refused {
            status: 409,
            code: Some(Code::EnvironmentOffline),
            text: None,
        }
    }

    fn ticket() -> Connected {
        Connected {
            environment_id: "e".to_owned(),
            url: Secret::new("u"),
            security_profile: SECURITY_PROFILE.to_owned(),
            executor_registration_id: "r".to_owned(),
            executor_public_key: Identity::generate().public_key().clone(),
            harness_key_authorization: Secret::new("a"),
        }
    }

    /// Asks something that answers as told, and notes when it was asked.
    async fn ask<F: Future<Output = Result<Connected, RegistryError>>>(
        answer: impl Fn(usize) -> F,
    ) -> (Result<Connected, RegistryError>, Vec<Duration>, Duration) {
        let (times, begun) = (RefCell::new(Vec::new()), Instant::now());
        let delay = RegistryDelay::new("key");
        let settled = patiently(&delay, || {
            times.borrow_mut().push(begun.elapsed());
            answer(times.borrow().len())
        });
        let settled = settled.await;
        (settled, times.into_inner(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_environment_that_stays_offline_is_asked_for_five_times() {
        let (settled, times, took) = ask(|_| async { Err(offline()) }).await;
        assert!(matches!(
            settled,
            Err(RegistryError::Refused { status: 409, .. })
        ));
        assert_eq!(times.len(), 5);
        let delay = RegistryDelay::new("key");
        let mut expected = Duration::ZERO;
        for (attempt, time) in (0..).zip(times) {
            let off = time.saturating_sub(expected);
            assert!(
                time >= expected && off < Duration::from_millis(10),
                "{time:?}"
            );
            expected += delay.after(attempt);
        }
        assert!(took < BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn a_registry_that_does_not_answer_is_given_six_seconds_each_time() {
        let (settled, times, took) = ask(|_| pending()).await;
        let error = settled.unwrap_err();
        assert!(matches!(
            error,
            RegistryError::Exchange(ExchangeError::Timeout(_))
        ));
        let delay = RegistryDelay::new("key");
        let second = REQUEST_TIMEOUT + delay.after(0);
        let third = second + REQUEST_TIMEOUT + delay.after(1);
        assert!(times[1] >= second && times[1] - second < Duration::from_millis(10));
        // The pause before the third may already be too long.
        assert_eq!(times.len(), if third < BUDGET { 3 } else { 2 });
        assert!(took <= BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn the_budget_cuts_the_last_request() {
        let (settled, times, took) = ask(|number| async move {
            if number < 4 {
                Err(offline())
            } else {
                pending().await
            }
        })
        .await;
        let cut = settled.unwrap_err();
        let RegistryError::Exchange(ExchangeError::Timeout(within)) = cut else {
            panic!("{cut}");
        };
        assert!(times.len() >= 4);
        assert!(within <= REQUEST_TIMEOUT);
        assert!(took <= BUDGET);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_comes_online_is_found() {
        let (settled, times, _) = ask(|number| async move {
            if number < 3 {
                Err(offline())
            } else {
                Ok(ticket())
            }
        })
        .await;
        assert_eq!(settled.unwrap().executor_registration_id, "r");
        assert_eq!(times.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_pass_is_not_asked_again() {
        let (settled, times, took) = ask(|_| async {
            Err(RegistryError::Denied {
                status: 403,
                text: None,
            })
        })
        .await;
        assert!(matches!(settled, Err(RegistryError::Denied { .. })));
        assert_eq!((times.len(), took), (1, Duration::ZERO));
    }
}
