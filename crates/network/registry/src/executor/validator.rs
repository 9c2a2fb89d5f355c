//! Asking the registry about a harness.

use exec_transport::relay::executor::{Claim, ValidationOutcome, Validator};
use futures_util::future::BoxFuture;

use crate::{
    api::{EnvironmentId, Secret, Validate},
    registry::{Registry, RegistryError},
};

/// Lets in whom the registry lets in. A registry that does not answer lets in nobody.
#[derive(Debug)]
pub(super) struct RegistryValidator {
    pub(super) registry: Registry,
    pub(super) environment: EnvironmentId,
}

impl Validator for RegistryValidator {
    fn validate(&self, claim: Claim) -> BoxFuture<'static, ValidationOutcome> {
        let (registry, environment) = (self.registry.clone(), self.environment.clone());
        Box::pin(async move {
            let request = Validate {
                executor_registration_id: claim.registration_id,
                harness_public_key: claim.harness_key,
                harness_key_authorization: Secret::new(claim.authorization),
            };
            // The stream's id is the peer's choice: it is not for logs.
            match registry
                .validate(&environment, claim.stream_id.as_str(), &request)
                .await
            {
                Ok(true) => ValidationOutcome::Accepted,
                Ok(false) => ValidationOutcome::Refused,
                Err(error @ RegistryError::Denied { status: 401, .. }) => {
                    tracing::error!(
                        %environment,
                        %error,
                        "registry rejects this executor's credential; restart it with a new one"
                    );
                    ValidationOutcome::ExecutorUnauthenticated
                }
                Err(error) => {
                    tracing::warn!(%environment, %error, "harness cannot be validated");
                    ValidationOutcome::Refused
                }
            }
        })
    }
}
