//! Both halves of an identity.

use std::fmt;

use clatter::{
    KeyPair,
    bytearray::ByteArray,
    crypto::{dh::X25519, kem::rust_crypto_ml_kem::MlKem768, rng::DefaultRng},
    traits::{Dh, Kem, Rng},
};

use crate::identity::PublicKey;

/// An X25519 key pair.
type DhPair = KeyPair<<X25519 as Dh>::PubKey, <X25519 as Dh>::PrivateKey>;
/// An ML-KEM-768 key pair.
type KemPair = KeyPair<<MlKem768 as Kem>::PubKey, <MlKem768 as Kem>::SecretKey>;

/// The static keys of one process. They live in memory only, and are erased when dropped.
pub struct Identity {
    dh: DhPair,
    kem: KemPair,
    public: PublicKey,
}

impl Identity {
    /// Makes new keys from the system's randomness.
    ///
    /// # Panics
    /// When the system has no randomness.
    pub fn generate() -> Self {
        Self::generate_from(&mut DefaultRng)
    }

    /// Returns the public half.
    pub fn public_key(&self) -> &PublicKey {
        &self.public
    }

    /// Makes keys from given randomness: X25519 secret, then ML-KEM `d`, then `z`.
    #[expect(
        clippy::expect_used,
        reason = "key generation fails for want of randomness alone, and lengths are of the types"
    )]
    pub(crate) fn generate_from<R: Rng>(rng: &mut R) -> Self {
        let dh = X25519::genkey_rng(rng).expect("an X25519 key is 32 random bytes");
        let kem = MlKem768::genkey_rng(rng).expect("an ML-KEM key is 64 random bytes");
        let public = PublicKey::from_raw(&dh.public, kem.public.as_slice())
            .expect("keys have the lengths of their types");
        Self { dh, kem, public }
    }

    pub(crate) fn dh(&self) -> &DhPair {
        &self.dh
    }

    pub(crate) fn kem(&self) -> &KemPair {
        &self.kem
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}
