//! Static Noise keys of an endpoint: one identity per process. The registry stores the public keys.

use std::{fmt, sync::Arc};

use base64_simd::STANDARD;
use clatter::{
    KeyPair,
    bytearray::ByteArray,
    crypto::{dh::X25519, kem::rust_crypto_ml_kem::MlKem768, rng::DefaultRng},
    traits::{Dh, Kem, Rng},
};
use serde::{Deserialize, Serialize};

/// An X25519 key pair.
type DhPair = KeyPair<<X25519 as Dh>::PubKey, <X25519 as Dh>::PrivateKey>;
/// An ML-KEM-768 key pair.
type KemPair = KeyPair<<MlKem768 as Kem>::PubKey, <MlKem768 as Kem>::SecretKey>;

/// Static keys of one process. They exist only in memory and are erased when dropped.
pub struct NoiseIdentity {
    dh: DhPair,
    kem: KemPair,
    public: NoisePublicKey,
}

impl NoiseIdentity {
    /// Generates keys with the system's random number generator.
    ///
    /// # Panics
    /// Panics if the system's random number generator fails.
    pub fn generate() -> Self {
        Self::generate_from(&mut DefaultRng)
    }

    /// Returns the public keys.
    pub fn public_key(&self) -> &NoisePublicKey {
        &self.public
    }

    /// Generates keys from `rng`: the X25519 secret, then ML-KEM `d`, then `z`.
    #[expect(
        clippy::expect_used,
        reason = "only the random number generator can fail, and the types fix the lengths"
    )]
    pub(crate) fn generate_from<R: Rng>(rng: &mut R) -> Self {
        let dh = X25519::genkey_rng(rng).expect("failed to generate an X25519 key");
        let kem = MlKem768::genkey_rng(rng).expect("failed to generate an ML-KEM key");
        let public = NoisePublicKey::from_raw(&dh.public, kem.public.as_slice())
            .expect("generated keys have fixed lengths");
        Self { dh, kem, public }
    }

    pub(crate) fn dh(&self) -> &DhPair {
        &self.dh
    }

    pub(crate) fn kem(&self) -> &KemPair {
        &self.kem
    }
}

impl fmt::Debug for NoiseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

/// Suite that every public key names in JSON. The handshake transcript does not contain it.
pub const SUITE: &str = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256";

/// Public keys of an endpoint: X25519 and ML-KEM-768. Cheap to clone.
#[derive(Clone, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(try_from = "PublicKeyJson", into = "PublicKeyJson")]
pub struct NoisePublicKey {
    x25519: [u8; X25519_BYTES],
    mlkem768: Arc<[u8; MLKEM768_BYTES]>,
}

impl NoisePublicKey {
    /// Creates public keys from their standard encodings.
    pub fn from_raw(x25519: &[u8], mlkem768: &[u8]) -> Result<Self, PublicKeyError> {
        let mlkem768: Box<[u8; MLKEM768_BYTES]> = Box::<[u8]>::from(mlkem768)
            .try_into()
            .map_err(|_| PublicKeyError::MlKem768)?;
        Ok(Self {
            x25519: x25519.try_into().map_err(|_| PublicKeyError::X25519)?,
            mlkem768: mlkem768.into(),
        })
    }

    /// Returns the X25519 key.
    pub fn x25519(&self) -> &[u8; X25519_BYTES] {
        &self.x25519
    }

    /// Returns the ML-KEM-768 encapsulation key.
    pub fn mlkem768(&self) -> &[u8; MLKEM768_BYTES] {
        &self.mlkem768
    }
}

impl fmt::Debug for NoisePublicKey {
    /// Shows only the X25519 key, which is enough to distinguish keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({})", STANDARD.encode_to_string(self.x25519))
    }
}

/// JSON form of a public key, without further members.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct PublicKeyJson {
    suite: String,
    x25519_public_key: String,
    mlkem768_public_key: String,
}

impl TryFrom<PublicKeyJson> for NoisePublicKey {
    type Error = PublicKeyError;

    fn try_from(members: PublicKeyJson) -> Result<Self, PublicKeyError> {
        if members.suite != SUITE {
            return Err(PublicKeyError::Suite);
        }
        let x25519 = STANDARD
            .decode_to_vec(&members.x25519_public_key)
            .map_err(|_| PublicKeyError::X25519)?;
        let mlkem768 = STANDARD
            .decode_to_vec(&members.mlkem768_public_key)
            .map_err(|_| PublicKeyError::MlKem768)?;
        Self::from_raw(&x25519, &mlkem768)
    }
}

impl From<NoisePublicKey> for PublicKeyJson {
    fn from(key: NoisePublicKey) -> Self {
        Self {
            suite: SUITE.to_owned(),
            x25519_public_key: STANDARD.encode_to_string(key.x25519),
            mlkem768_public_key: STANDARD.encode_to_string(key.mlkem768.as_slice()),
        }
    }
}

/// Why a public key is invalid.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PublicKeyError {
    /// Peer: unsupported suite.
    #[error("unsupported key suite: expected {SUITE}")]
    Suite,
    /// Peer: the X25519 key is not padded base64 of 32 bytes.
    #[error("x25519 key is not 32 bytes in base64")]
    X25519,
    /// Peer: the ML-KEM-768 key is not padded base64 of 1184 bytes.
    #[error("ml-kem-768 key is not 1184 bytes in base64")]
    MlKem768,
}

const X25519_BYTES: usize = 32;
const MLKEM768_BYTES: usize = 1184;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn public_key_round_trips_through_json_with_three_members() {
        let identity = NoiseIdentity::generate();
        let key = identity.public_key();
        let json = serde_json::to_string(key).unwrap();
        assert!(json.starts_with(
            r#"{"suite":"Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256","x25519_public_key":""#
        ));
        assert_eq!(json.len(), 1728);
        assert_eq!(&serde_json::from_str::<NoisePublicKey>(&json).unwrap(), key);
    }

    #[test]
    fn invalid_public_key_json_is_refused() {
        let good = serde_json::to_value(NoiseIdentity::generate().public_key()).unwrap();
        let refuse = |member: &str, value: Value| {
            let mut bad = good.clone();
            bad[member] = value;
            let error = serde_json::from_value::<NoisePublicKey>(bad).unwrap_err();
            error.to_string()
        };
        assert!(
            refuse(
                "suite",
                json!("Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256")
            )
            .contains("suite")
        );
        assert!(refuse("more", json!(1)).contains("unknown field"));
        let short = STANDARD.encode_to_string([7; 31]);
        assert!(refuse("x25519_public_key", json!(short)).contains("x25519"));
        let unpadded = STANDARD.encode_to_string([7; 32]).replace('=', "");
        assert!(refuse("x25519_public_key", json!(unpadded)).contains("x25519"));
        let long = STANDARD.encode_to_string([7; 1185]);
        assert!(refuse("mlkem768_public_key", json!(long)).contains("ml-kem"));
        assert!(refuse("mlkem768_public_key", json!("!")).contains("ml-kem"));
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let identity = NoiseIdentity::generate();
        assert_eq!(
            format!("{identity:?}"),
            format!("Identity {{ public: {:?}, .. }}", identity.public_key())
        );
    }
}
