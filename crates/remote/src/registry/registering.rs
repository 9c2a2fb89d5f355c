//! Registering until it is settled, one way or the other.

use tokio::time::sleep;

use super::RegistryError;
use crate::{api::Registered, delay::RegistryDelay};

/// Asks until the answer is final.
pub(super) async fn until_settled<F>(
    delay: &RegistryDelay,
    mut ask: impl FnMut() -> F,
) -> Result<Registered, RegistryError>
where
    F: Future<Output = Result<Registered, RegistryError>>,
{
    let mut attempt = 0;
    loop {
        match ask().await {
            Err(error) if error.may_register_again() => {
                let pause = delay.after(attempt);
                match attempt {
                    // Whoever runs it should know why nobody comes.
                    0 => tracing::error!(%error, "environment is not registered; trying again"),
                    _ => tracing::warn!(%error, ?pause, "environment is not registered yet"),
                }
                sleep(pause).await;
                attempt = attempt.saturating_add(1);
            }
            settled => return settled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use tokio::time::Instant;

    use super::*;
    use crate::api::{Code, SECURITY_PROFILE, Secret};

    fn refused(status: u16, code: Option<Code>) -> RegistryError {
        RegistryError::Refused {
            status,
            code,
            text: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_conflict_is_waited_out_however_long_it_takes() {
        let (delay, times) = (RegistryDelay::new("key"), RefCell::new(Vec::new()));
        let begun = Instant::now();
        let registered = until_settled(&delay, || {
            times.borrow_mut().push(begun.elapsed());
            let number = times.borrow().len();
            async move {
                match number {
                    20 => Ok(Registered {
                        environment_id: "e".to_owned(),
                        url: Secret::new("u"),
                        security_profile: SECURITY_PROFILE.to_owned(),
                        executor_registration_id: "r".to_owned(),
                    }),
                    n if n % 2 == 0 => Err(refused(503, Some(Code::RegistrationConflict))),
                    _ => Err(refused(502, Some(Code::AuthenticationServiceUnavailable))),
                }
            }
        })
        .await;
        assert_eq!(registered.unwrap().executor_registration_id, "r");
        let mut expected = Duration::ZERO;
        for (attempt, time) in (0..).zip(times.into_inner()) {
            assert_eq!(time.as_millis(), expected.as_millis(), "{attempt}");
            // The clock of tokio counts whole milliseconds, and rounds up.
            expected += Duration::from_millis(
                u64::try_from(delay.after(attempt).as_nanos().div_ceil(1_000_000)).unwrap(),
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_else_is_final() {
        let finals: [fn() -> RegistryError; 9] = [
            || refused(302, None),
            || refused(400, None),
            || refused(409, Some(Code::RegistrationConflict)),
            || refused(429, None),
            || refused(500, None),
            || refused(503, None),
            || refused(503, Some(Code::AuthenticationServiceUnavailable)),
            || refused(502, Some(Code::RegistrationConflict)),
            || RegistryError::Malformed(None),
        ];
        for make in finals {
            let (mut asked, delay) = (0, RegistryDelay::new("key"));
            let settled = until_settled(&delay, || {
                asked += 1;
                async { Err(make()) }
            });
            assert!(settled.await.is_err());
            assert_eq!(asked, 1, "{:?}", make());
        }
    }
}
