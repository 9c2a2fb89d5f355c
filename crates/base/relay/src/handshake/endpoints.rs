//! The two sides of a handshake, with the system's randomness.

use std::fmt;

use bytes::Bytes;
use clatter::crypto::rng::DefaultRng;

use crate::{
    channel::Channel,
    handshake::{HandshakeError, Scope, noise::Noise},
    identity::{Identity, PublicKey},
};

/// The harness's side: it knows the executor's key.
pub struct Initiator {
    noise: Box<Noise<DefaultRng>>,
}

impl Initiator {
    /// Starts a handshake. Returns the first message, which carries the authorization, encrypted.
    pub fn start(
        identity: &Identity,
        executor: &PublicKey,
        scope: Scope<'_>,
        authorization: &str,
    ) -> Result<(Self, Bytes), HandshakeError> {
        let mut noise = Box::new(Noise::initiator(identity, executor, scope)?);
        let message = noise.write_first(authorization)?;
        Ok((Self { noise }, message))
    }

    /// Reads the executor's answer, which proves that it holds its key.
    ///
    /// # Errors
    /// [`HandshakeError::RegistryAuthentication`] when the executor says that the registry rejects
    /// its credential.
    pub fn finish(mut self, message: &[u8]) -> Result<Channel, HandshakeError> {
        self.noise.read_second(message)?;
        self.noise.split()
    }
}

impl fmt::Debug for Initiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").finish_non_exhaustive()
    }
}

/// The executor's side, between the two messages: what the harness claims is known, and nothing was
/// answered yet.
pub struct Responder {
    noise: Box<Noise<DefaultRng>>,
    harness: PublicKey,
    authorization: String,
}

impl Responder {
    /// Reads the first message.
    pub fn read(
        identity: &Identity,
        scope: Scope<'_>,
        message: &[u8],
    ) -> Result<Self, HandshakeError> {
        let mut noise = Box::new(Noise::responder(identity, scope)?);
        let authorization = noise.read_first(message)?;
        Ok(Self {
            harness: noise.peer()?,
            noise,
            authorization,
        })
    }

    /// Answers. To be called once the registry approved the key and the authorization.
    pub fn accept(mut self) -> Result<(Bytes, Channel), HandshakeError> {
        let message = self.noise.write_second()?;
        Ok((message, self.noise.split()?))
    }

    /// Answers that the registry rejects the executor's own credential. There is no channel: the
    /// harness is told why, and that is all.
    pub fn reject_authentication(mut self) -> Result<Bytes, HandshakeError> {
        self.noise.write_rejection()
    }

    /// Returns the harness's key. That it holds the key is proven by its first record only.
    pub fn harness_key(&self) -> &PublicKey {
        &self.harness
    }

    /// Returns the authorization: a secret for the registry alone.
    pub fn authorization(&self) -> &str {
        &self.authorization
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("harness", &self.harness)
            .finish_non_exhaustive()
    }
}
