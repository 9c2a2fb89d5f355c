//! The agent's key: it signs, and it opens what was sealed for it.

use std::fmt;

use aws_lc_rs::{
    encoding::{AsBigEndian, Curve25519SeedBin},
    signature::Ed25519KeyPair,
};
use base64_simd::STANDARD;
use crypto_box::SecretKey;
use sha2::{Digest, Sha512};

use super::AgentIdentityError;
use crate::api::Secret;

/// The Ed25519 key of an agent. `Debug` hides it.
pub(super) struct AgentKey(Ed25519KeyPair);

impl AgentKey {
    /// Reads PKCS#8 in base64.
    pub(super) fn read(key: &Secret) -> Result<Self, AgentIdentityError> {
        let read = || {
            let document = STANDARD.decode_to_vec(key.expose().trim()).ok()?;
            Ed25519KeyPair::from_pkcs8(&document).ok()
        };
        read().map(Self).ok_or(AgentIdentityError::PrivateKey)
    }

    /// Signs a text. The signature is in base64.
    pub(super) fn sign(&self, text: &str) -> Option<String> {
        let signature = self.0.try_sign(text.as_bytes()).ok()?;
        Some(STANDARD.encode_to_string(signature.as_ref()))
    }

    /// Opens what somebody sealed for this agent, and made base64 of.
    pub(super) fn unseal(&self, sealed: &str) -> Option<Vec<u8>> {
        let sealed = STANDARD.decode_to_vec(sealed.trim()).ok()?;
        self.opener()?.unseal(&sealed).ok()
    }

    /// Derives the Curve25519 key: the secret scalar of Ed25519 is the hash's first half, which the
    /// library clamps.
    pub(super) fn opener(&self) -> Option<SecretKey> {
        let seed: Curve25519SeedBin<'_> = self.0.seed().ok()?.as_be_bytes().ok()?;
        let hash = Sha512::digest(seed.as_ref());
        SecretKey::from_slice(hash.get(..32)?).ok()
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgentKey(..)")
    }
}
