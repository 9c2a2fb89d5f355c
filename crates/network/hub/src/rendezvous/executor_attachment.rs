//! An executor's place in the switch and its presence in the store, which end together.

use std::{sync::Arc, time::Duration};

use tokio::{runtime::Handle, time::timeout};

use crate::{
    store::{Presence, Store, Timestamp},
    switch::{Attachment, Switch},
};

/// How long the store may take to record that an executor is gone.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// An executor that harnesses can reach. Dropping it detaches the executor in the background, so
/// that an upgrade that fails after it was agreed to leaves nothing behind.
#[derive(Debug)]
pub struct ExecutorAttachment {
    // Dropped before the presence: whoever finds the presence gone finds the slot gone, too.
    slot: Attachment,
    presence: PresenceGuard,
}

impl ExecutorAttachment {
    /// Puts the executor into the switch. The caller attaches `presence` to the store; it is
    /// detached with this in any case, as a store that failed may have recorded it nevertheless.
    pub(super) fn new(switch: &Arc<Switch>, store: &Arc<dyn Store>, presence: Presence) -> Self {
        let slot = switch.attach(
            presence.environment.clone(),
            presence.registration.clone(),
            presence.connection.clone(),
        );
        Self {
            slot,
            presence: PresenceGuard {
                store: Arc::clone(store),
                presence,
                is_detached: false,
            },
        }
    }

    /// The executor's place in the switch.
    pub(super) fn slot(&mut self) -> &mut Attachment {
        &mut self.slot
    }

    /// What is recorded of the executor.
    pub(crate) fn presence(&self) -> &Presence {
        &self.presence.presence
    }

    /// Detaches the executor from the switch and from the store.
    pub(super) async fn detach(self) {
        let Self { slot, mut presence } = self;
        drop(slot);
        detach(&*presence.store, &presence.presence).await;
        presence.is_detached = true;
    }
}

/// Detaches the presence from the store when it is dropped, unless that was done.
#[derive(Debug)]
struct PresenceGuard {
    store: Arc<dyn Store>,
    presence: Presence,
    is_detached: bool,
}

impl Drop for PresenceGuard {
    fn drop(&mut self) {
        if self.is_detached {
            return;
        }
        // Without a runtime the process ends, and with it every presence of this node.
        if let Ok(runtime) = Handle::try_current() {
            let (store, presence) = (Arc::clone(&self.store), self.presence.clone());
            runtime.spawn(async move { detach(&*store, &presence).await });
        }
    }
}

async fn detach(store: &dyn Store, presence: &Presence) {
    let environment = &presence.environment;
    match timeout(DETACH_TIMEOUT, store.detach(presence, Timestamp::now())).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%environment, %error, "executor not detached"),
        Err(_) => tracing::warn!(%environment, "executor not detached in time"),
    }
}
