//! Memory for bodies that are answered whole: bounded, and given back when they were sent.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpError};
use exec_wire::limits;
use futures_util::stream::{StreamExt, try_unfold};
use reqwest::Response;

use super::{Deadline, failed};

/// What whole bodies take at once, all together; one more is refused, and can be streamed. A server
/// answers four of the largest at a time.
const HELD_BYTES: usize = 256 << 20;

/// Reads a whole body.
pub(crate) async fn whole(
    mut response: Response,
    deadline: Deadline,
    room: Arc<Room>,
) -> Result<Bytes, HttpError> {
    let most = limits::MAX_HTTP_BODY_BYTES;
    let too_large = || HttpError::Host(format!("body is larger than {most} bytes: stream it"));
    // Told before it is read, where that is known.
    if response.content_length() > u64::try_from(most).ok() {
        return Err(too_large());
    }
    let mut held = Held::new(room);
    while let Some(part) = next(&mut response, deadline).await? {
        if held.len() + part.len() > most {
            return Err(too_large());
        }
        if !held.push(&part) {
            let text = "bodies that are read whole take too much memory: stream this one";
            return Err(HttpError::Host(text.to_owned()));
        }
    }
    Ok(held.finish())
}

/// Reads a body as whoever wants it asks for it. Dropping it closes the connection that it comes by.
pub(crate) fn parts(response: Response, deadline: Deadline) -> HttpBody {
    try_unfold(response, move |mut response| async move {
        let part = next(&mut response, deadline).await?;
        Ok(part.map(|part| (part, response)))
    })
    .boxed()
}

async fn next(response: &mut Response, deadline: Deadline) -> Result<Option<Bytes>, HttpError> {
    deadline.bound(response.chunk()).await?.map_err(failed)
}

/// Room for bodies.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: AtomicUsize,
}

/// A body that grows, and its room.
#[derive(Debug)]
pub(crate) struct Held {
    room: Arc<Room>,
    bytes: Vec<u8>,
    taken: usize,
}

impl Held {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self {
            room,
            bytes: Vec::new(),
            taken: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a part, if there is room for it.
    pub(crate) fn push(&mut self, part: &[u8]) -> bool {
        let before = self.room.taken.fetch_add(part.len(), Ordering::Relaxed);
        self.taken += part.len();
        let fits = before + part.len() <= HELD_BYTES;
        if fits {
            self.bytes.extend_from_slice(part);
        }
        fits
    }

    /// The body is whole. Its room is taken until the last who holds it drops it.
    pub(crate) fn finish(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_taken_until_the_body_is_dropped() {
        let room = Arc::new(Room::default());
        let mut held = Held::new(Arc::clone(&room));
        assert!(held.push(b"some"));
        let body = held.finish();
        assert_eq!(
            (&body[..], room.taken.load(Ordering::Relaxed)),
            (&b"some"[..], 4)
        );
        drop(body);
        assert_eq!(room.taken.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_and_given_back() {
        let room = Arc::new(Room::default());
        room.taken.store(HELD_BYTES - 3, Ordering::Relaxed);
        let mut held = Held::new(Arc::clone(&room));
        assert!(!held.push(b"some"));
        drop(held);
        assert_eq!(room.taken.load(Ordering::Relaxed), HELD_BYTES - 3);
    }
}
