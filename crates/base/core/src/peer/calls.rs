//! The asking end: gives out request ids and finds who waits for an answer.

use std::collections::BTreeMap;

use exec_wire::{
    error::RpcError,
    message::{Message, RequestId},
};
use serde_json::value::RawValue;

/// Requests that wait for their answer. `T` is whatever the caller needs to pass the answer on.
#[derive(Debug)]
pub struct Calls<T> {
    most: usize,
    next: i64,
    waiting: BTreeMap<i64, T>,
}

/// An answer that somebody waits for.
#[derive(Debug)]
pub struct Answer<'a, T> {
    /// Who waits.
    pub waiter: T,
    /// What the peer answered.
    pub result: Result<&'a RawValue, RpcError>,
    /// The data member, if it travelled raw.
    pub data: Option<bytes::Bytes>,
}

impl<T> Calls<T> {
    /// Begins with nothing asked; `most` requests may be unanswered.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            next: 1,
            waiting: BTreeMap::new(),
        }
    }

    /// Takes the id for a new request.
    pub fn ask(&mut self, waiter: T) -> Result<RequestId, CallsError> {
        self.ask_with(|_| waiter)
    }

    /// Takes the id for a new request whose waiter needs to know it.
    pub fn ask_with(
        &mut self,
        waiter: impl FnOnce(&RequestId) -> T,
    ) -> Result<RequestId, CallsError> {
        if self.waiting.len() >= self.most {
            return Err(CallsError::TooMany(self.most));
        }
        let number = self.next;
        let id = RequestId::Number(number);
        self.next += 1;
        self.waiting.insert(number, waiter(&id));
        Ok(id)
    }

    /// Finds who waits for an answer. Others' answers, and late ones, are nobody's.
    pub fn handle_answer<'a>(&mut self, message: Message<'a>) -> Option<Answer<'a, T>> {
        let (id, result, data) = match message {
            Message::Response(response) => (response.id, Ok(response.result), response.data),
            Message::Error(response) => (response.id, Err(response.error), None),
            Message::Request(_) | Message::Notification(_) => return None,
        };
        let RequestId::Number(id) = id else {
            return None;
        };
        Some(Answer {
            waiter: self.waiting.remove(&id)?,
            result,
            data,
        })
    }

    /// Gives up one request; its answer will be nobody's.
    pub fn forget(&mut self, id: &RequestId) -> Option<T> {
        match id {
            RequestId::Number(id) => self.waiting.remove(id),
            RequestId::Text(_) => None,
        }
    }

    /// Gives up every request: the connection is gone.
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.waiting).into_values()
    }
}

/// Caller: nothing more can be asked now.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CallsError {
    /// Too many answers are outstanding.
    #[error("more than {0} requests are unanswered")]
    TooMany(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_finds_its_waiter_once() {
        let mut calls = Calls::new(2);
        assert_eq!(calls.ask("a"), Ok(RequestId::Number(1)));
        assert_eq!(calls.ask("b"), Ok(RequestId::Number(2)));
        assert_eq!(calls.ask("c"), Err(CallsError::TooMany(2)));
        let text = br#"{"id":2,"result":{"x":1}}"#;
        let answer = calls.handle_answer(Message::decode(text).unwrap()).unwrap();
        assert_eq!(
            (answer.waiter, answer.result.unwrap().get()),
            ("b", r#"{"x":1}"#)
        );
        assert!(
            calls
                .handle_answer(Message::decode(text).unwrap())
                .is_none()
        );
        assert_eq!(calls.ask("c"), Ok(RequestId::Number(3)));
        assert_eq!(calls.drain().collect::<Vec<_>>(), ["a", "c"]);
    }

    #[test]
    fn errors_and_foreign_ids_are_told_apart() {
        let mut calls = Calls::new(9);
        calls.ask(()).unwrap();
        let foreign = br#"{"id":"1","result":0}"#;
        assert!(
            calls
                .handle_answer(Message::decode(foreign).unwrap())
                .is_none()
        );
        let error = br#"{"id":1,"error":{"code":-32010,"message":"busy"}}"#;
        let answer = calls
            .handle_answer(Message::decode(error).unwrap())
            .unwrap();
        assert_eq!(answer.result.unwrap_err().code.0, -32010);
    }
}
