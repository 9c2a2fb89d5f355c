//! Answers, and how their requests ended.

use bytes::Bytes;
use exec_wire::{error::RpcError, message::RequestId, outgoing::Outgoing};
use serde::Serialize;

use crate::meters::Outcome;

/// An answer on its way out.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) message: Outgoing,
    pub(crate) outcome: Outcome,
}

impl Answer {
    pub(crate) fn new<T: Serialize>(id: &RequestId, result: &Result<T, RpcError>) -> Self {
        match result {
            Ok(result) => Self {
                message: Outgoing::result(id, result),
                outcome: Outcome::Ok,
            },
            Err(error) => Self::error(id, error),
        }
    }

    /// Answers with a result that has a data member.
    pub(crate) fn with_data<T: Serialize>(
        id: &RequestId,
        result: &T,
        member: &'static str,
        data: Bytes,
    ) -> Self {
        Self {
            message: Outgoing::result_with_data(id, result, member, data),
            outcome: Outcome::Ok,
        }
    }

    pub(crate) fn error(id: &RequestId, error: &RpcError) -> Self {
        Self {
            message: Outgoing::error(id, error),
            outcome: Outcome::of(error),
        }
    }
}

/// What a request comes to.
#[derive(Debug)]
pub(crate) enum Reply {
    /// An answer to be sent.
    Send(Answer),
    /// The answer is sent already.
    Sent(Outcome),
}

impl Reply {
    pub(crate) fn outcome(&self) -> Outcome {
        match self {
            Self::Send(answer) => answer.outcome,
            Self::Sent(outcome) => *outcome,
        }
    }
}
