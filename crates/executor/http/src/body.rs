//! Bodies of responses, whole or part by part.

use std::sync::Arc;

use bytes::Bytes;
use exec_env::http::{HttpBody, HttpError};
use exec_wire::limits;
use futures_util::stream::{StreamExt, try_unfold};
use reqwest::Response;

use crate::{
    deadline::{Deadline, failed},
    held::{Held, Room},
};

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
