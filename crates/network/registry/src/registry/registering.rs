//! Registering until it is settled, one way or the other.

use std::{error::Error, iter};

use tokio::time::sleep;

use super::RegistryError;
use crate::delay::RegistryDelay;

/// Asks until the answer is final.
pub(super) async fn until_settled<T, F>(
    delay: &RegistryDelay,
    may_ask_again: fn(&RegistryError) -> bool,
    mut ask: impl FnMut() -> F,
) -> Result<T, RegistryError>
where
    F: Future<Output = Result<T, RegistryError>>,
{
    let mut attempt = 0;
    loop {
        match ask().await {
            Err(error) if may_ask_again(&error) => {
                let reason = chain(&error);
                let pause = delay.after(attempt);
                match attempt {
                    // Whoever runs it should know why nobody comes.
                    0 => tracing::error!(reason, "environment is not registered; trying again"),
                    _ => tracing::warn!(reason, ?pause, "environment is not registered yet"),
                }
                sleep(pause).await;
                attempt = attempt.saturating_add(1);
            }
            settled => return settled,
        }
    }
}

/// An error with its sources, for people.
fn chain(error: &dyn Error) -> String {
    let sources = iter::successors(Some(error), |error| (*error).source());
    let texts: Vec<String> = sources.map(ToString::to_string).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, time::Duration};

    use tokio::time::Instant;

    use super::*;
    use crate::api::{Code, Registered, SECURITY_PROFILE, Secret};

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
        let registered = until_settled(&delay, RegistryError::may_register_again, || {
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
            let again = RegistryError::may_register_again;
            let settled = until_settled(&delay, again, || {
                asked += 1;
                async { Err::<Registered, _>(make()) }
            });
            assert!(settled.await.is_err());
            assert_eq!(asked, 1, "{:?}", make());
        }
    }
}
