//! Hybrid Noise handshake: two messages, after which both endpoints have a [`NoiseChannel`], whose
//! records are sealed with AES-256-GCM, one key per direction.
//!
//! Invariants: both sides mix the same environment, registration and stream into the transcript,
//! otherwise the first message does not decrypt. Message lengths are checked before the Noise
//! library reads a byte. A sealer uses each record number once, and the number is the nonce.
//! Records are sealed and opened in place where the buffer allows it.
//!
//! Elsewhere: record ordering ([`crate::stream`]), and whether a harness may connect, which the
//! executor's registry decides.

#[cfg(test)]
mod tests;

use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::{Bytes, BytesMut};
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
        let mut noise = Box::new(NoiseState::new(identity, scope, Some(executor))?);
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
        let mut noise = Box::new(NoiseState::new(identity, scope, None)?);
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
        let message = self.noise.write(&[], SECOND_MESSAGE_BYTES)?;
        Ok((message, self.noise.split()?))
    }

    /// Writes a response which reports that the registry rejects the executor's own credential. No
    /// channel is established.
    pub fn reject_authentication(mut self) -> Result<Bytes, NoiseHandshakeError> {
        self.noise
            .write(REGISTRY_REJECTION_PAYLOAD, SECOND_MESSAGE_BYTES)
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
    /// Creates the state of an initiator, which knows the key of the executor, or of a responder.
    fn new(
        identity: &NoiseIdentity,
        scope: HandshakeScope<'_>,
        executor: Option<&NoisePublicKey>,
    ) -> Result<Self, NoiseHandshakeError> {
        let prologue = scope.prologue();
        let mut params = HybridHandshakeParams::new(noise_hybrid_ik(), executor.is_some())
            .with_prologue(&prologue)
            .with_s(identity.dh().clone())
            .with_s_kem(identity.kem().clone());
        if let Some(executor) = executor {
            params = params
                .with_rs(*executor.x25519())
                .with_rs_kem(<MlKem768 as Kem>::PubKey::from_slice(executor.mlkem768()));
        }
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

    /// Writes a message. `overhead` is its length without the payload.
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

/// Both directions of a channel, after a handshake.
#[derive(Debug)]
pub struct NoiseChannel {
    /// Seals outgoing records.
    pub sealer: RecordSealer,
    /// Opens incoming records.
    pub opener: RecordOpener,
}

#[cfg(any(test, fuzzing))]
impl NoiseChannel {
    /// Creates both ends of a channel without a handshake.
    pub(crate) fn pair() -> (Self, Self) {
        let (up, down) = ([1; 32], [2; 32]);
        let end = |seal: &[u8; 32], open: &[u8; 32]| Self {
            sealer: RecordSealer::new(seal),
            opener: RecordOpener::new(open),
        };
        (end(&up, &down), end(&down, &up))
    }
}

/// Seals records with consecutive numbers.
pub struct RecordSealer {
    key: LessSafeKey,
    next: u32,
}

impl RecordSealer {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self {
            key: aead_key(key),
            next: 0,
        }
    }

    /// Sets the number of the next record.
    #[cfg(test)]
    pub(crate) fn skip_to(&mut self, next: u32) {
        self.next = next;
    }

    /// Returns the number of the next record, which is also the number of records sealed so far.
    /// Above [`limits::LAST_SEQ`] no record can be sealed.
    pub fn next_seq(&self) -> u32 {
        self.next
    }

    /// Seals `buffer[start..]` in place and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>, start: usize) -> Result<(), RecordSealError> {
        if self.next > limits::LAST_SEQ {
            return Err(RecordSealError::Exhausted);
        }
        let plaintext = buffer.get_mut(start..).unwrap_or_default();
        if plaintext.len() > limits::RECORD_BYTES {
            return Err(RecordSealError::TooLong(plaintext.len()));
        }
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(self.next), Aad::empty(), plaintext)
            .map_err(|_| RecordSealError::Exhausted)?;
        buffer.extend_from_slice(tag.as_ref());
        self.next += 1;
        Ok(())
    }
}

impl fmt::Debug for RecordSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordSealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Opens the peer's records. The caller orders them and opens each one once.
pub struct RecordOpener {
    key: LessSafeKey,
}

impl RecordOpener {
    pub(crate) fn new(key: &impl ByteArray) -> Self {
        Self { key: aead_key(key) }
    }

    /// Opens a record, in place if its buffer is not shared.
    pub fn open(&self, seq: u32, record: Bytes) -> Result<Bytes, RecordOpenError> {
        let Some(len) = record.len().checked_sub(limits::TAG_BYTES) else {
            return Err(RecordOpenError::TooShort(record.len()));
        };
        if len > limits::RECORD_BYTES {
            return Err(RecordOpenError::TooLong(len));
        }
        let plaintext = match record.try_into_mut() {
            Ok(mut record) => {
                self.key
                    .open_in_place(nonce(seq), Aad::empty(), &mut record)
                    .map_err(|_| RecordOpenError::Forged(seq))?;
                record.truncate(len);
                record
            }
            Err(shared) => {
                let (ciphertext, tag) = shared.split_at(len);
                let mut plaintext = BytesMut::zeroed(len);
                self.key
                    .open_separate_gather(nonce(seq), Aad::empty(), ciphertext, tag, &mut plaintext)
                    .map_err(|_| RecordOpenError::Forged(seq))?;
                plaintext
            }
        };
        Ok(plaintext.freeze())
    }
}

impl fmt::Debug for RecordOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordOpener").finish_non_exhaustive()
    }
}

/// Why a record was not sealed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordSealError {
    /// Caller: all record numbers are used. The stream has to end.
    #[error("record numbers are exhausted")]
    Exhausted,
    /// Caller: the plaintext exceeds [`limits::RECORD_BYTES`].
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
}

/// Why a record was not opened.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordOpenError {
    /// Peer: the record is shorter than its tag.
    #[error("record of {0} bytes is shorter than its tag")]
    TooShort(usize),
    /// Peer: the plaintext exceeds [`limits::RECORD_BYTES`].
    #[error("record of {0} bytes is too long")]
    TooLong(usize),
    /// Peer or relay: authentication failed.
    #[error("record {0} is not authentic")]
    Forged(u32),
}

/// Returns the nonce: four zero bytes, then the record number as a 64-bit big-endian integer.
fn nonce(seq: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[8..].copy_from_slice(&seq.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[expect(
    clippy::expect_used,
    reason = "the handshake's cipher has 32-byte keys"
)]
fn aead_key(key: &impl ByteArray) -> LessSafeKey {
    let key = UnboundKey::new(&AES_256_GCM, key.as_slice()).expect("AES-256 key has 32 bytes");
    LessSafeKey::new(key)
}
