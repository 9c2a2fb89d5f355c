//! A connection that is cut while files are worked on.

use exec_env::filesystem::{FileError, FileFuture};

/// How often something is asked again after the connection was cut, before it is given up. The client
/// waits for a connection each time.
pub(crate) const ATTEMPTS: u32 = 8;

/// Asks for something, and again if the connection was cut meanwhile. Doing it twice must be as good
/// as once.
pub(crate) async fn persist<T>(mut ask: impl FnMut() -> FileFuture<T>) -> Result<T, FileError> {
    let mut left = ATTEMPTS;
    loop {
        match ask().await {
            Err(FileError::Disconnected(_)) if left > 0 => left -= 1,
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use exec_env::disconnect::Disconnect;
    use futures_util::future::{FutureExt, ready};

    use super::*;

    fn cut() -> FileError {
        FileError::Disconnected(Disconnect::Transport("cut".to_owned()))
    }

    #[tokio::test]
    async fn what_was_cut_is_asked_again() {
        let asked = Cell::new(0);
        let outcome = persist(|| {
            asked.set(asked.get() + 1);
            let outcome = if asked.get() < 3 { Err(cut()) } else { Ok(7) };
            ready(outcome).boxed()
        })
        .await;
        assert_eq!((outcome, asked.get()), (Ok(7), 3));
    }

    #[tokio::test]
    async fn it_is_given_up_in_the_end_and_other_errors_at_once() {
        let asked = Cell::new(0);
        let outcome = persist(|| {
            asked.set(asked.get() + 1);
            ready(Err::<(), _>(cut())).boxed()
        })
        .await;
        assert_eq!((outcome, asked.get()), (Err(cut()), ATTEMPTS + 1));
        let refused = FileError::Refused("no".to_owned());
        let outcome = persist(|| ready(Err::<(), _>(refused.clone())).boxed()).await;
        assert_eq!(outcome, Err(refused));
    }
}
