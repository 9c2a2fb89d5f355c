//! A request and its answer.

use std::{fmt, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use url::Url;

/// One request.
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Option<Bytes>,
    pub(crate) connection: Connection,
    /// How long all of it may take.
    pub(crate) within: Duration,
    /// How long the answer may be.
    pub(crate) limit: usize,
}

/// Over which connection a request goes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Connection {
    /// One that an earlier request left, if there is any.
    Kept,
    /// A new one. A server may close one that was left just when a request is on its way; who must
    /// not ask twice cannot tell that from a request that was heard.
    Fresh,
}

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

// Answers hold signed URLs and authorizations.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
