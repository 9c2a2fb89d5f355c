//! Watches under a policy, as the server hears of them.
//!
//! Each has a hand of its own. While nobody takes its changes it waits with what it has gathered, so
//! what a client does not read is bounded there, and said to overflow.

use exec_env::filesystem::{Changes, MissingWatch};
use futures_util::{
    FutureExt,
    stream::{self, BoxStream, StreamExt},
};
use tokio::sync::OwnedSemaphorePermit;

use super::{frame::Class, hand::Hand, request::ToldChanges};

/// Returns the changes that a hand tells, until it says that they end. If it is lost, so are
/// changes.
pub(super) fn changes(hand: Hand, permit: OwnedSemaphorePermit) -> BoxStream<'static, Changes> {
    stream::unfold(Some((hand, permit)), |state| async move {
        let (mut hand, permit) = state?;
        let told = match hand.next().await {
            Ok(frame) if frame.class == Class::Ended => return None,
            Ok(frame) => serde_json::from_slice::<ToldChanges>(&frame.text).ok(),
            Err(_) => None,
        };
        match told {
            Some(told) => Some((told.into(), Some((hand, permit)))),
            None => Some((LOST, None)),
        }
    })
    .boxed()
}

/// Resolves when a hand tells that something has changed, or is lost: then nobody knows.
pub(super) fn missing(mut hand: Hand, permit: OwnedSemaphorePermit) -> MissingWatch {
    async move {
        drop(hand.next().await);
        drop(permit);
    }
    .boxed()
}

const LOST: Changes = Changes {
    changes: Vec::new(),
    overflow: true,
};
