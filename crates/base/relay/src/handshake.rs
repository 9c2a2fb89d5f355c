//! The hybrid NoiseState handshake: two messages, after which both endpoints hold a [`Channel`].
//!
//! Invariant: what is bound into the transcript (environment, registration, stream) is the same on
//! both sides, or the first message does not decrypt. Lengths are checked before the library sees a
//! byte. Not here: whether a harness is welcome; the executor's registry says that.

#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use clatter::{
    HybridHandshakeCore, HybridHandshakeParams,
    bytearray::ByteArray,
    crypto::{
        cipher::AesGcm, dh::X25519, hash::Sha256, kem::rust_crypto_ml_kem::MlKem768,
        rng::DefaultRng,
    },
    handshakepattern::noise_hybrid_ik,
    traits::{Handshaker, Kem, Rng},
};

use crate::{
    channel::{Channel, RecordOpener, RecordSealer},
    identity::{Identity, PublicKey},
    limits,
};

/// The harness's side: it knows the executor's key.
pub struct Initiator {
    noise: Box<NoiseState<DefaultRng>>,
}

impl Initiator {
    /// Starts a handshake. Returns the first message, which carries the authorization, encrypted.
    pub fn start(
        identity: &Identity,
        executor: &PublicKey,
        scope: Scope<'_>,
        authorization: &str,
    ) -> Result<(Self, Bytes), HandshakeError> {
        let mut noise = Box::new(NoiseState::initiator(identity, executor, scope)?);
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
    noise: Box<NoiseState<DefaultRng>>,
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
        let mut noise = Box::new(NoiseState::responder(identity, scope)?);
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

/// What a handshake is for. Both endpoints use the values that the registry issued, and the stream id
/// of the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scope<'a> {
    /// The environment.
    pub environment_id: &'a str,
    /// The executor's current registration.
    pub registration_id: &'a str,
    /// The stream.
    pub stream_id: &'a str,
}

impl Scope<'_> {
    /// Returns what both sides mix into the transcript first.
    fn prologue(&self) -> Vec<u8> {
        let mut prologue = Vec::new();
        for part in [
            PROLOGUE_DOMAIN,
            self.environment_id,
            self.registration_id,
            self.stream_id,
        ] {
            prologue.extend_from_slice(&(part.len() as u64).to_be_bytes());
            prologue.extend_from_slice(part.as_bytes());
        }
        prologue
    }
}

/// One side of a handshake.
struct NoiseState<R: Rng>(HybridHandshakeCore<X25519, MlKem768, MlKem768, AesGcm, Sha256, R>);

impl<R: Rng> NoiseState<R> {
    fn initiator(
        identity: &Identity,
        executor: &PublicKey,
        scope: Scope<'_>,
    ) -> Result<Self, HandshakeError> {
        let prologue = scope.prologue();
        let params = HybridHandshakeParams::new(noise_hybrid_ik(), true)
            .with_prologue(&prologue)
            .with_s(identity.dh().clone())
            .with_s_kem(identity.kem().clone())
            .with_rs(*executor.x25519())
            .with_rs_kem(<MlKem768 as Kem>::PubKey::from_slice(executor.mlkem768()));
        HybridHandshakeCore::new(params)
            .map(Self)
            .map_err(|_| HandshakeError::Rejected)
    }

    fn responder(identity: &Identity, scope: Scope<'_>) -> Result<Self, HandshakeError> {
        let prologue = scope.prologue();
        let params = HybridHandshakeParams::new(noise_hybrid_ik(), false)
            .with_prologue(&prologue)
            .with_s(identity.dh().clone())
            .with_s_kem(identity.kem().clone());
        HybridHandshakeCore::new(params)
            .map(Self)
            .map_err(|_| HandshakeError::Rejected)
    }

    /// Writes the first message.
    fn write_first(&mut self, authorization: &str) -> Result<Bytes, HandshakeError> {
        if authorization.len() > limits::AUTHORIZATION_BYTES {
            return Err(HandshakeError::AuthorizationTooLong(authorization.len()));
        }
        self.write(authorization.as_bytes(), FIRST_MESSAGE_BYTES)
    }

    /// Reads the first message and returns the authorization in it.
    fn read_first(&mut self, message: &[u8]) -> Result<String, HandshakeError> {
        if !(FIRST_MESSAGE_BYTES..=FIRST_MESSAGE_BYTES + limits::AUTHORIZATION_BYTES)
            .contains(&message.len())
        {
            return Err(HandshakeError::Length(message.len()));
        }
        let mut authorization = vec![0; message.len() - FIRST_MESSAGE_BYTES];
        self.0
            .read_message(message, &mut authorization)
            .map_err(|_| HandshakeError::Rejected)?;
        String::from_utf8(authorization).map_err(|_| HandshakeError::AuthorizationNotText)
    }

    /// Writes the second message.
    fn write_second(&mut self) -> Result<Bytes, HandshakeError> {
        self.write(&[], SECOND_MESSAGE_BYTES)
    }

    /// Writes the second message of an executor whose own credential the registry rejects.
    fn write_rejection(&mut self) -> Result<Bytes, HandshakeError> {
        self.write(REGISTRY_REJECTION_PAYLOAD, SECOND_MESSAGE_BYTES)
    }

    /// Reads the second message. It is empty, or says that the registry rejects the executor's
    /// credential; any other length is refused before it is looked at.
    fn read_second(&mut self, message: &[u8]) -> Result<(), HandshakeError> {
        let payload_bytes = match message.len().checked_sub(SECOND_MESSAGE_BYTES) {
            Some(length) if length == 0 || length == REGISTRY_REJECTION_PAYLOAD.len() => length,
            Some(_) | None => return Err(HandshakeError::Length(message.len())),
        };
        let mut payload = vec![0; payload_bytes];
        self.0
            .read_message(message, &mut payload)
            .map_err(|_| HandshakeError::Rejected)?;
        match payload.as_slice() {
            [] => Ok(()),
            REGISTRY_REJECTION_PAYLOAD => Err(HandshakeError::RegistryAuthentication),
            _ => Err(HandshakeError::UnknownPayload),
        }
    }

    /// Returns the peer's static key, once a message proved that it holds it.
    fn peer(&self) -> Result<PublicKey, HandshakeError> {
        let key = self.0.get_remote_static().ok_or(HandshakeError::Rejected)?;
        PublicKey::from_raw(key.dh(), key.kem().as_slice()).map_err(|_| HandshakeError::Rejected)
    }

    /// Takes the keys out of a finished handshake.
    fn split(self) -> Result<Channel, HandshakeError> {
        let initiator = self.0.is_initiator();
        let transport = self.0.finalize().map_err(|_| HandshakeError::Rejected)?;
        let states = transport.take();
        let (up, _) = states.initiator_to_responder.take();
        let (down, _) = states.responder_to_initiator.take();
        let (seal, open) = if initiator { (up, down) } else { (down, up) };
        Ok(Channel {
            sealer: RecordSealer::new(&seal),
            opener: RecordOpener::new(&open),
        })
    }

    /// Writes a first message with any payload.
    #[cfg(test)]
    fn write_raw(&mut self, payload: &[u8]) -> Result<Bytes, HandshakeError> {
        self.write(payload, FIRST_MESSAGE_BYTES)
    }

    /// Writes a second message with any payload.
    #[cfg(test)]
    fn write_second_raw(&mut self, payload: &[u8]) -> Result<Bytes, HandshakeError> {
        self.write(payload, SECOND_MESSAGE_BYTES)
    }

    fn write(&mut self, payload: &[u8], overhead: usize) -> Result<Bytes, HandshakeError> {
        let mut message = vec![0; overhead + payload.len()];
        let written = self
            .0
            .write_message(payload, &mut message)
            .map_err(|_| HandshakeError::Rejected)?;
        debug_assert_eq!(written, message.len());
        Ok(message.into())
    }
}

/// Why a handshake came to nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// Caller: the authorization does not fit into the first message.
    #[error("authorization of {0} bytes is too long")]
    AuthorizationTooLong(usize),
    /// Peer: no handshake message has this length.
    #[error("handshake message of {0} bytes")]
    Length(usize),
    /// Peer: keys, scope or bytes are not those that the message was made for.
    #[error("handshake message is not authentic")]
    Rejected,
    /// Peer: the authorization is not UTF-8.
    #[error("authorization is not text")]
    AuthorizationNotText,
    /// Peer: the registry rejects the executor's own credential, so the executor can let nobody in.
    /// Trying again does not help before the executor has another one.
    #[error(
        "environment registry authentication rejected: \
         the executor's own credential is not valid any more; restart it with a new one"
    )]
    RegistryAuthentication,
    /// Peer: the second message says something that this version does not know.
    #[error("handshake answer has an unknown payload")]
    UnknownPayload,
}

/// First part of every prologue.
const PROLOGUE_DOMAIN: &str = "codex-exec-server-relay-noise/v1";
/// Length of the first message, without the authorization.
const FIRST_MESSAGE_BYTES: usize = 1088 + 32 + 1184 + 48 + 1200 + 16;
/// Length of the second message, without a payload.
const SECOND_MESSAGE_BYTES: usize = 1088 + 1104 + 32 + 1184 + 16;
/// Payload of the second message when the registry answered the executor's `validate` with 401
/// (since stock 0.169).
const REGISTRY_REJECTION_PAYLOAD: &[u8] = b"codex-registry-authentication-rejected/v1";
