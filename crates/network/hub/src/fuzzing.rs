//! Entry point of the fuzz target `rendezvous_url`.
//!
//! Invariants checked: an edited URL grants what the original granted, or nothing; a URL that the
//! hub signs grants exactly its claims; an accepted JWT has no critical extension and has not
//! expired; an accepted body is unchanged after encoding it again; a `Host` header cannot add
//! credentials or a path to a URL. Elsewhere: the target itself and its corpus (`fuzz/`).

use std::{collections::HashMap, fmt, sync::OnceLock};

use aws_lc_rs::hmac;
use base64_simd::URL_SAFE_NO_PAD;
use exec_registry::api::{
    DirectRegisterRequest, HarnessConnectRequest, RegisterRequest, ValidateRequest,
};
use exec_relay::identity::{NoiseIdentity, NoisePublicKey};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    store::{EnvironmentId, RegistrationId, SigningKey, Timestamp},
    tokens::JwtAuthority,
    url::{PublicUrl, UrlClaims, UrlSigner},
};

const NOW: Timestamp = Timestamp::from_seconds(1_800_000_000);
const HUB: &str = "ws://h";
const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

/// Interprets bytes as input of a hub. The first byte selects the kind.
///
/// # Panics
/// Panics if an invariant above does not hold.
pub fn rendezvous_url(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else {
        return;
    };
    match kind % 8 {
        0 => raw_url(rest),
        1 => edited_url(&executor_url(), rest),
        2 => edited_url(&harness_url(), rest),
        3 => signed_url(rest),
        4 => signed_jwt(rest),
        5 => raw_jwt(rest),
        6 => body(rest),
        _ => host(rest),
    }
}

fn signer() -> &'static UrlSigner {
    static SIGNER: OnceLock<UrlSigner> = OnceLock::new();
    SIGNER.get_or_init(|| match SigningKey::from_bytes(&[7; SigningKey::LEN]) {
        Some(key) => UrlSigner::new(&key),
        None => panic!("a key of this length is valid"),
    })
}

fn harness() -> &'static NoisePublicKey {
    static HARNESS: OnceLock<NoisePublicKey> = OnceLock::new();
    HARNESS.get_or_init(|| NoiseIdentity::generate().public_key().clone())
}

fn parsed<T: std::str::FromStr<Err: fmt::Debug>>(text: &str) -> T {
    match text.parse() {
        Ok(parsed) => parsed,
        Err(error) => panic!("{text}: {error:?}"),
    }
}

fn executor_url() -> String {
    signer().executor_url(HUB, &parsed("env-1"), &parsed("reg-1"))
}

fn harness_url() -> String {
    signer().harness_url(HUB, &parsed("env-1"), &parsed("reg-1"), harness(), NOW)
}

fn check(url: &str) -> Option<UrlClaims> {
    let target = url.strip_prefix(HUB).unwrap_or(url);
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    signer().check(path, query, NOW).ok()
}

/// An unsigned URL is never accepted.
fn raw_url(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        assert_eq!(check(text), None, "{text}");
    }
}

/// Replaces bytes of a valid URL: pairs of position and byte.
fn edited_url(url: &str, edits: &[u8]) {
    let original = check(url);
    assert!(original.is_some(), "{url}");
    let mut edited = url.as_bytes().to_vec();
    for edit in edits.chunks_exact(2) {
        if let ([at, byte], length) = (edit, edited.len())
            && let Some(target) = edited.get_mut(usize::from(*at) % length.max(1))
        {
            *target = *byte;
        }
    }
    if let Ok(edited) = std::str::from_utf8(&edited) {
        let opened = check(edited);
        assert!(opened.is_none() || opened == original, "{edited}");
    }
}

/// Signs an environment and a registration chosen by the input, separated by a line feed.
fn signed_url(bytes: &[u8]) {
    let Some((environment, registration)) = two_lines(bytes) else {
        return;
    };
    let (Ok(environment), Ok(registration)) = (
        environment.parse::<EnvironmentId>(),
        registration.parse::<RegistrationId>(),
    ) else {
        return;
    };
    let executor = check(&signer().executor_url(HUB, &environment, &registration));
    let expected = UrlClaims::Executor {
        environment: environment.clone(),
        registration: registration.clone(),
    };
    assert_eq!(executor, Some(expected));
    let url = signer().harness_url(HUB, &environment, &registration, harness(), NOW);
    match check(&url) {
        Some(UrlClaims::Harness {
            environment: found,
            registration: of,
            ..
        }) => assert_eq!((found, of), (environment, registration)),
        other => panic!("{url}: {other:?}"),
    }
}

fn two_lines(bytes: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(bytes).ok()?.split_once('\n')
}

fn authority() -> &'static JwtAuthority {
    static AUTHORITY: OnceLock<JwtAuthority> = OnceLock::new();
    AUTHORITY.get_or_init(|| match JwtAuthority::new(SECRET, None, None) {
        Ok(authority) => authority,
        Err(error) => panic!("{error}"),
    })
}

/// Signs a header and claims chosen by the input, separated by a line feed.
fn signed_jwt(bytes: &[u8]) {
    let Some((header, claims)) = two_lines(bytes) else {
        return;
    };
    let encode = |part: &[u8]| URL_SAFE_NO_PAD.encode_to_string(part);
    let message = format!(
        "{}.{}",
        encode(header.as_bytes()),
        encode(claims.as_bytes())
    );
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET);
    let signature = hmac::sign(&key, message.as_bytes());
    let token = format!("{message}.{}", encode(signature.as_ref()));
    let Ok(principal) = authority().check(&token, NOW) else {
        return;
    };
    let Ok(header) = serde_json::from_str::<HashMap<String, Value>>(header) else {
        panic!("accepted header is not an object: {header}");
    };
    assert!(!header.contains_key("crit"), "{header:?}");
    let Ok(claims) = serde_json::from_str::<Value>(claims) else {
        panic!("accepted claims are not an object: {claims}");
    };
    assert_eq!(claims["sub"].as_str(), Some(principal.name.as_str()));
    let until = claims["exp"].as_i64().map(i128::from);
    let skewed = i128::from(NOW.seconds()) - 30;
    assert!(until.is_some_and(|until| until >= skewed), "{claims}");
}

fn raw_jwt(bytes: &[u8]) {
    if let Ok(token) = std::str::from_utf8(bytes) {
        assert!(authority().check(token, NOW).is_err(), "{token}");
    }
}

fn body(bytes: &[u8]) {
    same_again::<RegisterRequest>(bytes);
    same_again::<HarnessConnectRequest>(bytes);
    same_again::<ValidateRequest>(bytes);
    same_again::<DirectRegisterRequest>(bytes);
}

fn same_again<T: DeserializeOwned + Serialize>(bytes: &[u8]) {
    let Ok(parsed) = serde_json::from_slice::<T>(bytes) else {
        return;
    };
    let once = serde_json::to_string(&parsed);
    let again = once.as_deref().ok().map(serde_json::from_str::<T>);
    let (Ok(once), Some(Ok(again))) = (once, again) else {
        panic!("accepted body cannot be encoded");
    };
    assert_eq!(serde_json::to_string(&again).ok(), Some(once));
}

fn host(bytes: &[u8]) {
    let Ok(host) = std::str::from_utf8(bytes) else {
        return;
    };
    let Ok(websocket) = PublicUrl::plain().websocket(Some(host)) else {
        return;
    };
    // The client chose the host, so it may be unusable in URLs.
    if let Ok(url) = ::url::Url::parse(&format!("{websocket}/rendezvous/env-1?sig=x")) {
        assert_eq!(url.path(), "/rendezvous/env-1", "{host}");
        assert_eq!(url.query(), Some("sig=x"), "{host}");
        assert!(
            url.username().is_empty() && url.password().is_none(),
            "{host}"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn corpus_is_replayed() {
        let corpus =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/rendezvous_url");
        let mut count = 0;
        for file in fs::read_dir(corpus).unwrap() {
            rendezvous_url(&fs::read(file.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 12, "the corpus is missing");
    }

    #[test]
    fn random_bytes_violate_no_invariant() {
        // Splitmix64: a small substitute for the fuzzer in every test run.
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        };
        for round in 0..2000 {
            let bytes: Vec<u8> = (0..round % 100).map(|_| byte()).collect();
            rendezvous_url(&bytes);
        }
    }
}
