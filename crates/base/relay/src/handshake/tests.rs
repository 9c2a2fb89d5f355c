//! The stock test vector, and the messages that a handshake refuses.

use std::{cell::RefCell, collections::VecDeque};

use clatter::rand_core::{CryptoRng, Error, RngCore};
use sha2::{Digest, Sha256};

use super::*;

const SCOPE: HandshakeScope<'_> = HandshakeScope {
    environment_id: "env-1",
    registration_id: "reg-1",
    stream_id: "11111111-2222-4333-8444-555555555555",
};

thread_local! {
    /// Output of [`ScriptedRng`], in blocks of 32 equal bytes.
    static SCRIPT: RefCell<VecDeque<u8>> = const { RefCell::new(VecDeque::new()) };
}

/// Random number generator that returns the vector's bytes. The script is thread-local because the
/// library creates its generators itself.
#[derive(Clone, Default)]
struct ScriptedRng;

impl ScriptedRng {
    fn set_blocks(blocks: &[u8]) {
        SCRIPT.with_borrow_mut(|script| {
            assert!(script.is_empty(), "the library consumed less than expected");
            script.extend(blocks.iter().copied());
        });
    }
}

impl CryptoRng for ScriptedRng {}

impl RngCore for ScriptedRng {
    fn next_u32(&mut self) -> u32 {
        panic!("only whole keys are requested")
    }

    fn next_u64(&mut self) -> u64 {
        panic!("only whole keys are requested")
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        assert_eq!(dest.len(), 32);
        dest.fill(
            SCRIPT.with_borrow_mut(|script| script.pop_front().expect("script is too short")),
        );
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(dest);
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn identity(blocks: [u8; 3]) -> NoiseIdentity {
    ScriptedRng::set_blocks(&blocks);
    NoiseIdentity::generate_from(&mut ScriptedRng)
}

fn seal_hex(channel: &mut NoiseChannel, text: &str) -> String {
    let mut buffer = text.as_bytes().to_vec();
    channel.sealer.seal(&mut buffer, 0).unwrap();
    hex(&buffer)
}

#[test]
fn stock_handshake_vector_is_reproduced() {
    assert_eq!(
        hex(&SCOPE.prologue()),
        "0000000000000020636f6465782d657865632d7365727665722d72656c61792d6e6f6973652f7631\
         0000000000000005656e762d3100000000000000057265672d31\
         000000000000002431313131313131312d323232322d343333332d383434342d353535353535353535353535"
    );
    let harness = identity([0x10, 0x11, 0x12]);
    let executor = identity([0x20, 0x21, 0x22]);
    assert_eq!(
        hex(harness.public_key().x25519()),
        "781faab908430150daccdd6f9d6c5086e34f73a93ebbaa271765e5036edfc519"
    );
    assert_eq!(
        hex(executor.public_key().x25519()),
        "06453fcd9cef5a1f53acc4f942104c0c8e9e27d5c7b37f5507cdcd1628105963"
    );
    assert_eq!(
        sha256_hex(harness.public_key().mlkem768()),
        "27ee97675ef5c87eab6f25d7348c278ff46ed744eb5ffd7076edc87a00bffa3b"
    );
    assert_eq!(
        sha256_hex(executor.public_key().mlkem768()),
        "1418bb01c65d61edaef3a77c3b0092100eb9b36d72c3624d390de5961cc780f2"
    );

    ScriptedRng::set_blocks(&[0x30, 0x31, 0x32, 0x33]);
    let mut initiator =
        NoiseState::<ScriptedRng>::new(&harness, SCOPE, Some(executor.public_key())).unwrap();
    let first = initiator.write_first("authorization-1").unwrap();
    assert_eq!(first.len(), 3583);
    assert_eq!(hex(&first[..16]), "ff473ff6bfa551b63064db5b71f76cb5");
    assert_eq!(hex(&first[3567..]), "f8767819e311b8e6b848988efa460a74");
    assert_eq!(
        sha256_hex(&first),
        "bef621573879faba3556e74227693cbb457c4fb08416e6dc4c9b8657b6a7b148"
    );

    ScriptedRng::set_blocks(&[0x40, 0x41, 0x42, 0x43, 0x44]);
    let mut responder = NoiseState::<ScriptedRng>::new(&executor, SCOPE, None).unwrap();
    assert_eq!(responder.read_first(&first).unwrap(), "authorization-1");
    assert_eq!(&responder.peer().unwrap(), harness.public_key());
    let second = responder.write(&[], SECOND_MESSAGE_BYTES).unwrap();
    assert_eq!(second.len(), 3424);
    assert_eq!(hex(&second[..16]), "7475cde202264259cfdeaa2ff1f2338e");
    assert_eq!(hex(&second[3408..]), "02bd06e82265911594fe1b70f6e852be");
    assert_eq!(
        sha256_hex(&second),
        "e9cc3729376c04b28849832ddeeeb80a2564bffbfa3b807e276683fb65e6ffb6"
    );

    initiator.read_second(&second).unwrap();
    let mut up = initiator.split().unwrap();
    let mut down = responder.split().unwrap();
    assert_eq!(
        seal_hex(&mut up, "hello"),
        "03b4c3b6ac0086f4cb5a26f02b2c577b19e013a210"
    );
    assert_eq!(
        seal_hex(&mut up, "hello"),
        "d69fdeff5a4d2325a48bb0a41196fe179a882cecc3"
    );
    assert_eq!(
        seal_hex(&mut down, "hello"),
        "bef94dd47a2162d7df220d3c3df069e53dc819ecd4"
    );
    SCRIPT.with_borrow(|script| assert!(script.is_empty()));
}

/// Returns both identities, the initiator and a first message.
fn start_handshake() -> (NoiseIdentity, NoiseIdentity, NoiseInitiator, bytes::Bytes) {
    let (harness, executor) = (NoiseIdentity::generate(), NoiseIdentity::generate());
    let (initiator, first) =
        NoiseInitiator::start(&harness, executor.public_key(), SCOPE, "secret").unwrap();
    (harness, executor, initiator, first)
}

#[test]
fn endpoints_open_each_others_records() {
    let (harness, executor, initiator, first) = start_handshake();
    let responder = NoiseResponder::read(&executor, SCOPE, &first).unwrap();
    assert_eq!(responder.harness_key(), harness.public_key());
    assert_eq!(responder.authorization(), "secret");
    assert!(!format!("{responder:?}{initiator:?}").contains("secret"));
    let (second, mut down) = responder.accept().unwrap();
    let mut up = initiator.finish(&second).unwrap();
    for (from, to) in [
        (&mut up.sealer, &down.opener),
        (&mut down.sealer, &up.opener),
    ] {
        let mut record = b"hello".to_vec();
        from.seal(&mut record, 0).unwrap();
        let record = bytes::Bytes::from(record);
        // A shared record is opened into a new buffer, an unshared one in place.
        assert_eq!(to.open(0, record.clone()).unwrap(), "hello");
        assert_eq!(to.open(0, record).unwrap(), "hello");
    }
}

#[test]
fn first_message_for_another_scope_or_executor_is_rejected() {
    let (_, executor, _, first) = start_handshake();
    for scope in [
        HandshakeScope {
            environment_id: "env-2",
            ..SCOPE
        },
        HandshakeScope {
            registration_id: "reg-2",
            ..SCOPE
        },
        HandshakeScope {
            stream_id: "other",
            ..SCOPE
        },
        // Parts are distinguished by their lengths.
        HandshakeScope {
            environment_id: "env-1r",
            registration_id: "eg-1",
            ..SCOPE
        },
    ] {
        let error = NoiseResponder::read(&executor, scope, &first).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::Rejected);
    }
    let error = NoiseResponder::read(&NoiseIdentity::generate(), SCOPE, &first).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::Rejected);
}

#[test]
fn every_part_of_both_messages_is_authenticated() {
    let (_, executor, _, first) = start_handshake();
    for offset in [
        0, 1087, 1088, 1119, 1120, 2303, 2304, 2352, 3551, 3552, 3573,
    ] {
        let mut bad = first.to_vec();
        bad[offset] ^= 0x10;
        let error = NoiseResponder::read(&executor, SCOPE, &bad).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::Rejected, "byte {offset}");
    }
    for offset in [0, 1088, 2191, 2192, 2224, 3407, 3408, 3423] {
        let (_, executor, initiator, first) = start_handshake();
        let responder = NoiseResponder::read(&executor, SCOPE, &first).unwrap();
        let mut second = responder.accept().unwrap().0.to_vec();
        second[offset] ^= 0x10;
        let error = initiator.finish(&second).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::Rejected, "byte {offset}");
    }
}

#[test]
fn messages_of_invalid_length_never_reach_the_library() {
    let (harness, executor, ..) = start_handshake();
    for len in [0, 1, 1088, 3567, 3568 + 4097, 65_536] {
        let error = NoiseResponder::read(&executor, SCOPE, &vec![0; len]).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::Length(len));
    }
    for len in [0, 3423, 3425, 3464, 3466] {
        let (_, _, initiator, _) = start_handshake();
        let error = initiator.finish(&vec![0; len]).unwrap_err();
        assert_eq!(error, NoiseHandshakeError::Length(len));
    }
    let longest = "x".repeat(4096);
    let key = executor.public_key();
    let (_, first) = NoiseInitiator::start(&harness, key, SCOPE, &longest).unwrap();
    let responder = NoiseResponder::read(&executor, SCOPE, &first).unwrap();
    assert_eq!(responder.authorization(), longest);
    let error = NoiseInitiator::start(&harness, key, SCOPE, &"x".repeat(4097)).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::AuthorizationTooLong(4097));
}

#[test]
fn non_utf8_authorization_is_refused() {
    let (harness, executor) = (NoiseIdentity::generate(), NoiseIdentity::generate());
    let mut noise = NoiseState::<clatter::crypto::rng::DefaultRng>::new(
        &harness,
        SCOPE,
        Some(executor.public_key()),
    )
    .unwrap();
    let first = noise.write(&[0xff, 0xfe], FIRST_MESSAGE_BYTES).unwrap();
    let error = NoiseResponder::read(&executor, SCOPE, &first).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::AuthorizationNotText);
}

#[test]
fn executor_reports_a_rejected_registry_credential() {
    let (_, executor, initiator, first) = start_handshake();
    let responder = NoiseResponder::read(&executor, SCOPE, &first).unwrap();
    let second = responder.reject_authentication().unwrap();
    assert_eq!(second.len(), 3465);
    let error = initiator.finish(&second).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::RegistryAuthentication);
    assert!(
        error
            .to_string()
            .starts_with("environment registry authentication rejected"),
        "{error}"
    );
}

#[test]
fn unknown_or_forged_response_payload_is_refused() {
    let (_, executor, initiator, first) = start_handshake();
    let mut noise =
        NoiseState::<clatter::crypto::rng::DefaultRng>::new(&executor, SCOPE, None).unwrap();
    noise.read_first(&first).unwrap();
    let second = noise.write(&[b'x'; 41], SECOND_MESSAGE_BYTES).unwrap();
    let error = initiator.finish(&second).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::UnknownPayload);

    let (_, executor, initiator, first) = start_handshake();
    let responder = NoiseResponder::read(&executor, SCOPE, &first).unwrap();
    let mut second = responder.reject_authentication().unwrap().to_vec();
    second[3408] ^= 1;
    let error = initiator.finish(&second).unwrap_err();
    assert_eq!(error, NoiseHandshakeError::Rejected);
}
