//! What is configured and installed: each request is one call of the environment's catalog.

use std::sync::Arc;

use exec_env::{catalog::ExecutorCatalog, filesystem::FileFuture};
use exec_wire::{error::RpcError, message::RequestId};
use futures_util::future::FutureExt;
use serde::Serialize;

use super::{Begun, Handlers};
use crate::answer::{Answer, Reply};

impl Handlers<'_> {
    /// Answers with something that may be long: few of those are in memory at a time.
    pub(super) fn look_up<T: Serialize + Send + 'static>(
        &self,
        id: RequestId,
        operation: impl FnOnce(&dyn ExecutorCatalog) -> FileFuture<T> + Send + 'static,
    ) -> Begun {
        let (files, outbox) = (Arc::clone(self.files), Arc::clone(self.outbox));
        let catalog = Arc::clone(&self.session.environment.catalog);
        let run = async move {
            // The semaphore is never closed.
            let _room = files.lists.acquire().await;
            let found = operation(&*catalog).await;
            let answer = Answer::new(&id, &found.map_err(RpcError::from));
            outbox.send(answer.message).await;
            Reply::Sent(answer.outcome)
        };
        Begun::Runs(run.boxed())
    }
}
