//! Hybrid Noise handshake: two messages, after which both endpoints have a [`NoiseChannel`].
//!
//! Invariant: both sides mix the same environment, registration and stream into the transcript,
//! otherwise the first message does not decrypt. Message lengths are checked before the Noise
//! library reads a byte. The executor's registry decides whether a harness may connect.

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
    channel::{NoiseChannel, RecordOpener, RecordSealer},
    identity::{NoiseIdentity, NoisePublicKey},
    limits,
};

/// Initiator of a handshake: the harness, which knows the executor's key.
pub struct NoiseInitiator {
    noise: Box<NoiseState<DefaultRng>>,
}

impl NoiseInitiator {
    /// Starts a handshake. Returns the first message, which contains the encrypted authorization.
    pub fn start(
        identity: &NoiseIdentity,
        executor: &NoisePublicKey,
        scope: HandshakeScope<'_>,
        authorization: &str,
    ) -> Result<(Self, Bytes), NoiseHandshakeError> {
        let mut noise = Box::new(NoiseState::initiator(identity, executor, scope)?);
        let message = noise.write_first(authorization)?;
        Ok((Self { noise }, message))
    }

    /// Reads the executor's response, which proves that it has its private key.
    ///
    /// # Errors
    /// [`NoiseHandshakeError::RegistryAuthentication`] if the executor reports that the registry
    /// rejects its credential.
    pub fn finish(mut self, message: &[u8]) -> Result<NoiseChannel, NoiseHandshakeError> {
        self.noise.read_second(message)?;
        self.noise.split()
    }
}

impl fmt::Debug for NoiseInitiator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Initiator").finish_non_exhaustive()
    }
}

/// Responder of a handshake: the executor, after it has read the first message and before it
/// responds.
pub struct NoiseResponder {
    noise: Box<NoiseState<DefaultRng>>,
    harness: NoisePublicKey,
    authorization: String,
}

impl NoiseResponder {
    /// Reads the first message.
    pub fn read(
        identity: &NoiseIdentity,
        scope: HandshakeScope<'_>,
        message: &[u8],
    ) -> Result<Self, NoiseHandshakeError> {
        let mut noise = Box::new(NoiseState::responder(identity, scope)?);
        let authorization = noise.read_first(message)?;
        Ok(Self {
            harness: noise.peer()?,
            noise,
            authorization,
        })
    }

    /// Writes the response. Call it only after the registry has approved the key and the
    /// authorization.
    pub fn accept(mut self) -> Result<(Bytes, NoiseChannel), NoiseHandshakeError> {
        let message = self.noise.write_second()?;
        Ok((message, self.noise.split()?))
    }

    /// Writes a response which reports that the registry rejects the executor's own credential. No
    /// channel is established.
    pub fn reject_authentication(mut self) -> Result<Bytes, NoiseHandshakeError> {
        self.noise.write_rejection()
    }

    /// Returns the harness's key. Only its first record proves that it has the private key.
    pub fn harness_key(&self) -> &NoisePublicKey {
        &self.harness
    }

    /// Returns the authorization: a secret that only the registry may see.
    pub fn authorization(&self) -> &str {
        &self.authorization
    }
}

impl fmt::Debug for NoiseResponder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder")
            .field("harness", &self.harness)
            .finish_non_exhaustive()
    }
}

/// Identifiers that a handshake is bound to. Both endpoints use the ids issued by the registry and
/// the stream id of the frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HandshakeScope<'a> {
    /// Environment id.
    pub environment_id: &'a str,
    /// Current registration of the executor.
    pub registration_id: &'a str,
    /// Stream id.
    pub stream_id: &'a str,
}

impl HandshakeScope<'_> {
    /// Returns the prologue, which both sides mix into the transcript first.
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

/// Noise state of one side of a handshake.
struct NoiseState<R: Rng>(HybridHandshakeCore<X25519, MlKem768, MlKem768, AesGcm, Sha256, R>);

impl<R: Rng> NoiseState<R> {
    fn initiator(
        identity: &NoiseIdentity,
        executor: &NoisePublicKey,
        scope: HandshakeScope<'_>,
    ) -> Result<Self, NoiseHandshakeError> {
        let prologue = scope.prologue();
        let params = HybridHandshakeParams::new(noise_hybrid_ik(), true)
            .with_prologue(&prologue)
            .with_s(identity.dh().clone())
            .with_s_kem(identity.kem().clone())
            .with_rs(*executor.x25519())
            .with_rs_kem(<MlKem768 as Kem>::PubKey::from_slice(executor.mlkem768()));
        HybridHandshakeCore::new(params)
            .map(Self)
            .map_err(|_| NoiseHandshakeError::Rejected)
    }

    fn responder(
        identity: &NoiseIdentity,
        scope: HandshakeScope<'_>,
    ) -> Result<Self, NoiseHandshakeError> {
        let prologue = scope.prologue();
        let params = HybridHandshakeParams::new(noise_hybrid_ik(), false)
            .with_prologue(&prologue)
            .with_s(identity.dh().clone())
            .with_s_kem(identity.kem().clone());
        HybridHandshakeCore::new(params)
            .map(Self)
            .map_err(|_| NoiseHandshakeError::Rejected)
    }

    /// Writes the first message.
    fn write_first(&mut self, authorization: &str) -> Result<Bytes, NoiseHandshakeError> {
        if authorization.len() > limits::AUTHORIZATION_BYTES {
            return Err(NoiseHandshakeError::AuthorizationTooLong(
                authorization.len(),
            ));
        }
        self.write(authorization.as_bytes(), FIRST_MESSAGE_BYTES)
    }

    /// Reads the first message and returns its authorization.
    fn read_first(&mut self, message: &[u8]) -> Result<String, NoiseHandshakeError> {
        if !(FIRST_MESSAGE_BYTES..=FIRST_MESSAGE_BYTES + limits::AUTHORIZATION_BYTES)
            .contains(&message.len())
        {
            return Err(NoiseHandshakeError::Length(message.len()));
        }
        let mut authorization = vec![0; message.len() - FIRST_MESSAGE_BYTES];
        self.0
            .read_message(message, &mut authorization)
            .map_err(|_| NoiseHandshakeError::Rejected)?;
        String::from_utf8(authorization).map_err(|_| NoiseHandshakeError::AuthorizationNotText)
    }

    /// Writes the second message.
    fn write_second(&mut self) -> Result<Bytes, NoiseHandshakeError> {
        self.write(&[], SECOND_MESSAGE_BYTES)
    }

    /// Writes the second message with the payload that reports a rejected registry credential.
    fn write_rejection(&mut self) -> Result<Bytes, NoiseHandshakeError> {
        self.write(REGISTRY_REJECTION_PAYLOAD, SECOND_MESSAGE_BYTES)
    }

    /// Reads the second message. Its payload is empty or reports a rejected registry credential.
    /// Messages of any other length are refused unread.
    fn read_second(&mut self, message: &[u8]) -> Result<(), NoiseHandshakeError> {
        let payload_bytes = match message.len().checked_sub(SECOND_MESSAGE_BYTES) {
            Some(length) if length == 0 || length == REGISTRY_REJECTION_PAYLOAD.len() => length,
            Some(_) | None => return Err(NoiseHandshakeError::Length(message.len())),
        };
        let mut payload = vec![0; payload_bytes];
        self.0
            .read_message(message, &mut payload)
            .map_err(|_| NoiseHandshakeError::Rejected)?;
        match payload.as_slice() {
            [] => Ok(()),
            REGISTRY_REJECTION_PAYLOAD => Err(NoiseHandshakeError::RegistryAuthentication),
            _ => Err(NoiseHandshakeError::UnknownPayload),
        }
    }

    /// Returns the peer's static key after a message has proved its possession.
    fn peer(&self) -> Result<NoisePublicKey, NoiseHandshakeError> {
        let key = self
            .0
            .get_remote_static()
            .ok_or(NoiseHandshakeError::Rejected)?;
        NoisePublicKey::from_raw(key.dh(), key.kem().as_slice())
            .map_err(|_| NoiseHandshakeError::Rejected)
    }

    /// Returns the channel of a finished handshake.
    fn split(self) -> Result<NoiseChannel, NoiseHandshakeError> {
        let initiator = self.0.is_initiator();
        let transport = self
            .0
            .finalize()
            .map_err(|_| NoiseHandshakeError::Rejected)?;
        let states = transport.take();
        let (up, _) = states.initiator_to_responder.take();
        let (down, _) = states.responder_to_initiator.take();
        let (seal, open) = if initiator { (up, down) } else { (down, up) };
        Ok(NoiseChannel {
            sealer: RecordSealer::new(&seal),
            opener: RecordOpener::new(&open),
        })
    }

    /// Writes a first message with an arbitrary payload.
    #[cfg(test)]
    fn write_raw(&mut self, payload: &[u8]) -> Result<Bytes, NoiseHandshakeError> {
        self.write(payload, FIRST_MESSAGE_BYTES)
    }

    /// Writes a second message with an arbitrary payload.
    #[cfg(test)]
    fn write_second_raw(&mut self, payload: &[u8]) -> Result<Bytes, NoiseHandshakeError> {
        self.write(payload, SECOND_MESSAGE_BYTES)
    }

    fn write(&mut self, payload: &[u8], overhead: usize) -> Result<Bytes, NoiseHandshakeError> {
        let mut message = vec![0; overhead + payload.len()];
        let written = self
            .0
            .write_message(payload, &mut message)
            .map_err(|_| NoiseHandshakeError::Rejected)?;
        debug_assert_eq!(written, message.len());
        Ok(message.into())
    }
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoiseHandshakeError {
    /// Caller: the authorization does not fit into the first message.
    #[error("authorization of {0} bytes is too long")]
    AuthorizationTooLong(usize),
    /// Peer: invalid message length.
    #[error("handshake message has invalid length {0}")]
    Length(usize),
    /// Peer: authentication failed because keys, scope or bytes differ.
    #[error("handshake message is not authentic")]
    Rejected,
    /// Peer: the authorization is not UTF-8.
    #[error("authorization is not valid UTF-8")]
    AuthorizationNotText,
    /// Peer: the registry rejects the executor's own credential, so the executor cannot accept
    /// harnesses. A retry helps only after the executor has a new credential.
    #[error(
        "environment registry authentication rejected: \
         the executor's own credential is not valid any more; restart it with a new one"
    )]
    RegistryAuthentication,
    /// Peer: the payload of the second message is unknown to this version.
    #[error("handshake response has an unknown payload")]
    UnknownPayload,
}

/// First part of every prologue.
const PROLOGUE_DOMAIN: &str = "codex-exec-server-relay-noise/v1";
/// Length of the first message without its authorization.
const FIRST_MESSAGE_BYTES: usize = 1088 + 32 + 1184 + 48 + 1200 + 16;
/// Length of the second message without its payload.
const SECOND_MESSAGE_BYTES: usize = 1088 + 1104 + 32 + 1184 + 16;
/// Payload of the second message if the registry answered the executor's `validate` request with
/// 401 (since stock 0.169).
const REGISTRY_REJECTION_PAYLOAD: &[u8] = b"codex-registry-authentication-rejected/v1";
