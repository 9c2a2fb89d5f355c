//! Tests of signatures against the values of the published test suite and of another
//! implementation.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use proptest::prelude::*;
use url::Url;

use super::{SignedRequest, VerifyError, verify, *};

const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
const REGISTER: &[u8] = br#"{"transport":"direct_jsonrpc_v1"}"#;

struct Case {
    method: &'static str,
    url: &'static str,
    body: &'static [u8],
    token: Option<&'static str>,
    region: &'static str,
    service: &'static str,
    at: &'static str,
    signed_headers: &'static str,
    signature: &'static str,
}

/// The first two cases are `get-vanilla` and `get-vanilla-query-order-key-case` of the published
/// suite; another implementation signed the others.
const CASES: &[Case] = &[
    Case {
        method: "GET",
        url: "https://example.amazonaws.com/",
        body: b"",
        token: None,
        region: "us-east-1",
        service: "service",
        at: "20150830T123600Z",
        signed_headers: "host;x-amz-date",
        signature: "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    },
    Case {
        method: "GET",
        url: "https://example.amazonaws.com/?Param2=value2&Param1=value1",
        body: b"",
        token: None,
        region: "us-east-1",
        service: "service",
        at: "20150830T123600Z",
        signed_headers: "host;x-amz-date",
        signature: "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
    },
    Case {
        method: "POST",
        url: "https://registry.example/cloud/environment/env-1/direct/register",
        body: REGISTER,
        token: None,
        region: "eu-west-1",
        service: "execute-api",
        at: "20261116T153000Z",
        signed_headers: "content-type;host;x-amz-date",
        signature: "00a39f5a9ac853113947d52c6fd2e2305c8b503eb8b6f9194b63d3d9f76fb657",
    },
    Case {
        method: "POST",
        url: "http://127.0.0.1:8765/cloud/environment/env-1/direct/register",
        body: REGISTER,
        token: Some("token+with/signs=="),
        region: "eu-west-1",
        service: "execute-api",
        at: "20261116T153000Z",
        signed_headers: "content-type;host;x-amz-date;x-amz-security-token",
        signature: "995383837b34d02e1927ce04ffa72968cc863e2b0b3a5b964bb2fa0146e4fa99",
    },
    Case {
        method: "GET",
        url: "https://host.example:8443/executors/env%20one?b=2&a=x%2Fy",
        body: b"",
        token: Some("token+with/signs=="),
        region: "us-gov-west-1",
        service: "execute-api",
        at: "20280229T000000Z",
        signed_headers: "host;x-amz-date;x-amz-security-token",
        signature: "6b4d7c0d4d0563b04b42c7e0d59f39ff5cbb9716484a9d1b861f106443554d57",
    },
];

impl Case {
    fn access_key_id(&self) -> &'static str {
        self.token.map_or("AKIDEXAMPLE", |_| "ASIAEXAMPLE")
    }

    fn at(&self) -> SigV4Timestamp {
        SigV4Timestamp::parse(self.at).unwrap()
    }

    fn sign(&self, secret: &str) -> HeaderMap {
        let url = Url::parse(self.url).unwrap();
        let json = [(header::CONTENT_TYPE, "application/json")];
        let request = SigningRequest {
            method: self.method,
            url: &url,
            headers: if self.body.is_empty() { &[] } else { &json },
            body: self.body,
        };
        let keys = AwsKeys {
            access_key_id: self.access_key_id().to_owned(),
            secret_key: SecretString::new(secret),
            session_token: self.token.map(SecretString::new),
        };
        let scope = SigningScope {
            region: self.region.to_owned(),
            service: self.service.to_owned(),
        };
        sign(request, &keys, &scope, &self.at()).unwrap()
    }

    /// Returns the headers as a server receives them.
    fn presented(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let url = Url::parse(self.url).unwrap();
        let authority = url.authority().parse().unwrap();
        headers.insert(header::HOST, authority);
        if !self.body.is_empty() {
            let json = HeaderValue::from_static("application/json");
            headers.insert(header::CONTENT_TYPE, json);
        }
        headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
        headers.extend(self.sign(SECRET));
        headers
    }

    fn verify(&self, headers: &HeaderMap, now: &SigV4Timestamp) -> Result<String, VerifyError> {
        let url = Url::parse(self.url).unwrap();
        let request = SignedRequest {
            method: self.method,
            path: url.path(),
            query: url.query().unwrap_or_default(),
            headers,
            body: self.body,
        };
        verify(request, self.service, now, |id| self.secret(id))
    }

    fn secret(&self, id: &str) -> Option<SecretString> {
        (id == self.access_key_id()).then(|| SecretString::new(SECRET))
    }
}

#[test]
fn signatures_match_other_implementations() {
    for case in CASES {
        let signature = case.sign(SECRET);
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential={}/{}/{}/{}/aws4_request, SignedHeaders={}, Signature={}",
            case.access_key_id(),
            &case.at[..8],
            case.region,
            case.service,
            case.signed_headers,
            case.signature,
        );
        assert_eq!(signature[header::AUTHORIZATION], expected, "{}", case.url);
        assert_eq!(signature[&DATE], case.at);
        let token = signature.get(&SECURITY_TOKEN);
        assert_eq!(token.map(|value| value.to_str().unwrap()), case.token);
        assert_eq!(signature.len(), 2 + usize::from(case.token.is_some()));
    }
}

#[test]
fn valid_signature_is_accepted_within_the_skew() {
    for case in CASES {
        let headers = case.presented();
        let at = case.at();
        assert_eq!(
            case.verify(&headers, &at),
            Ok(case.access_key_id().to_owned())
        );
        for (seconds, accepted) in [(300, true), (301, false)] {
            let system = |text: &SigV4Timestamp| {
                let epoch = SigV4Timestamp::new(std::time::SystemTime::UNIX_EPOCH);
                std::time::SystemTime::UNIX_EPOCH + text.distance(&epoch)
            };
            let skew = Duration::from_secs(seconds);
            for now in [system(&at) + skew, system(&at) - skew] {
                let checked = case.verify(&headers, &SigV4Timestamp::new(now));
                let expected = accepted.then(|| case.access_key_id().to_owned());
                assert_eq!(checked, expected.ok_or(VerifyError::Skew), "{now:?}");
            }
        }
    }
}

#[test]
fn any_change_invalidates_the_signature() {
    let case = &CASES[3];
    let (headers, at) = (case.presented(), case.at());
    let url = Url::parse(case.url).unwrap();
    let valid = SignedRequest {
        method: case.method,
        path: url.path(),
        query: "",
        headers: &headers,
        body: case.body,
    };
    let mut other_host = headers.clone();
    other_host.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8766"));
    let mut other_token = headers.clone();
    other_token.insert("x-amz-security-token", HeaderValue::from_static("stolen"));
    let mut other_type = headers.clone();
    other_type.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    let mut later = headers.clone();
    later.insert("x-amz-date", HeaderValue::from_static("20261116T153001Z"));
    let mut without = headers.clone();
    without.remove(header::CONTENT_TYPE);
    for changed in [
        SignedRequest {
            method: "PUT",
            ..valid
        },
        SignedRequest {
            path: "/cloud/environment/env-2/direct/register",
            ..valid
        },
        SignedRequest {
            query: "x=y",
            ..valid
        },
        SignedRequest {
            body: b"{}",
            ..valid
        },
        SignedRequest {
            headers: &other_host,
            ..valid
        },
        SignedRequest {
            headers: &other_token,
            ..valid
        },
        SignedRequest {
            headers: &other_type,
            ..valid
        },
        SignedRequest {
            headers: &later,
            ..valid
        },
        SignedRequest {
            headers: &without,
            ..valid
        },
    ] {
        let checked = verify(changed, case.service, &at, |id| case.secret(id));
        assert_eq!(checked, Err(VerifyError::Signature), "{changed:?}");
    }
    let checked =
        |secret: Option<&str>| verify(valid, case.service, &at, |_| secret.map(SecretString::new));
    assert_eq!(checked(Some(SECRET)), Ok("ASIAEXAMPLE".to_owned()));
    assert_eq!(checked(Some("another")), Err(VerifyError::Signature));
    assert_eq!(checked(None), Err(VerifyError::Signature));
    let unknown = verify(
        SignedRequest {
            headers: &signed_with_placeholder_key(case),
            ..valid
        },
        case.service,
        &at,
        |_| None,
    );
    assert_eq!(unknown, Err(VerifyError::Signature));
    let other_service = verify(valid, "iam", &at, |id| case.secret(id));
    assert_eq!(other_service, Err(VerifyError::Service));
}

/// Signs with the placeholder that `verify` uses for unknown keys.
fn signed_with_placeholder_key(case: &Case) -> HeaderMap {
    let mut headers = case.presented();
    headers.extend(case.sign("unknown-key"));
    headers
}

#[test]
fn malformed_signatures_are_rejected() {
    let case = &CASES[4];
    let at = case.at();
    let valid = case.presented();
    let line = valid[header::AUTHORIZATION].to_str().unwrap().to_owned();
    let change = |from: &str, to: &str| {
        assert!(line.contains(from), "{from}");
        line.replace(from, to)
    };
    for (authorization, error) in [
        ("Bearer x".to_owned(), VerifyError::Unsigned),
        ("AWS4-HMAC-SHA256".to_owned(), VerifyError::Unsigned),
        ("AWS4-HMAC-SHA256 ".to_owned(), VerifyError::Malformed),
        (change("Signature=", "Signature=0"), VerifyError::Malformed),
        (
            change("Signature=6b", "Signature=6B"),
            VerifyError::Malformed,
        ),
        (
            change("Signature=6b4", "Signature=6b5"),
            VerifyError::Signature,
        ),
        (change("ASIAEXAMPLE", ""), VerifyError::Malformed),
        (change("20280229/", "20280228/"), VerifyError::Malformed),
        (
            change("us-gov-west-1", "us-gov-west-2"),
            VerifyError::Signature,
        ),
        (
            change("aws4_request", "aws5_request"),
            VerifyError::Malformed,
        ),
        (
            change("host;x-amz-date", "x-amz-date"),
            VerifyError::Uncovered,
        ),
        (change("host;x-amz-date", "host"), VerifyError::Uncovered),
        (change(";x-amz-security-token", ""), VerifyError::Uncovered),
        (
            change("host;x-amz-date", "x-amz-date;host"),
            VerifyError::Malformed,
        ),
        (change("host;", "host;host;"), VerifyError::Malformed),
        (change("host;", "host;nowhere;"), VerifyError::Signature),
        (
            format!("{line}, Signature={}", case.signature),
            VerifyError::Malformed,
        ),
        (format!("{line}, More=x"), VerifyError::Malformed),
    ] {
        let mut headers = valid.clone();
        headers.insert(header::AUTHORIZATION, authorization.parse().unwrap());
        assert_eq!(case.verify(&headers, &at), Err(error), "{authorization}");
    }
    for name in ["authorization", "x-amz-date"] {
        let mut headers = valid.clone();
        let again = headers[name].clone();
        headers.append(name, again);
        assert_eq!(
            case.verify(&headers, &at),
            Err(VerifyError::Unsigned),
            "{name}"
        );
        headers.remove(name);
        assert_eq!(
            case.verify(&headers, &at),
            Err(VerifyError::Unsigned),
            "{name}"
        );
    }
    let mut headers = valid.clone();
    headers.append(header::HOST, HeaderValue::from_static("other.example"));
    assert_eq!(case.verify(&headers, &at), Err(VerifyError::Malformed));
}

proptest! {
    #[test]
    fn verifying_never_panics(text in "(AWS4-HMAC-SHA256 )?[ -~]{0,120}", date in "[0-9TZ]{15,17}") {
        let case = &CASES[0];
        let mut headers = case.presented();
        headers.insert(header::AUTHORIZATION, text.parse().unwrap());
        prop_assert!(case.verify(&headers, &case.at()).is_err());
        headers = case.presented();
        headers.insert("x-amz-date", date.parse().unwrap());
        prop_assert!(case.verify(&headers, &case.at()).is_err());
    }
}

#[test]
fn unsignable_requests_are_errors_without_secrets() {
    let scope = SigningScope {
        region: "r".to_owned(),
        service: "s".to_owned(),
    };
    let keys = AwsKeys {
        access_key_id: "id".to_owned(),
        secret_key: SecretString::new("s3cret"),
        session_token: Some(SecretString::new("t0ken")),
    };
    let signed = |url: &str, keys: &AwsKeys| {
        let url = Url::parse(url).unwrap();
        let request = SigningRequest {
            method: "GET",
            url: &url,
            headers: &[],
            body: b"",
        };
        sign(request, keys, &scope, &CASES[0].at())
    };
    assert_eq!(signed("data:x", &keys), Err(SignError::NoHost));
    let broken = AwsKeys {
        access_key_id: "a\r\nb: c".to_owned(),
        ..keys.clone()
    };
    assert_eq!(signed("https://a.test", &broken), Err(SignError::Header));
    let shown = format!("{keys:?} {:?}", signed("https://a.test", &keys).unwrap());
    for secret in ["s3cret", "t0ken", "Signature="] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

fn at(seconds: u64) -> SigV4Timestamp {
    SigV4Timestamp::new(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

#[test]
fn timestamps_are_formatted_as_calendar_dates() {
    for (seconds, text) in [
        (0, "19700101T000000Z"),
        (951_782_399, "20000228T235959Z"),
        (951_782_400, "20000229T000000Z"),
        (1_440_938_160, "20150830T123600Z"),
        (4_107_542_400, "21000301T000000Z"),
        (LAST_SECOND, "99991231T235959Z"),
        (u64::MAX >> 2, "99991231T235959Z"),
    ] {
        assert_eq!(at(seconds).as_str(), text);
    }
    assert_eq!(at(1_440_938_160).date(), "20150830");
}

#[test]
fn invalid_timestamps_are_rejected() {
    for text in [
        "",
        "20150830",
        "20150830T123600",
        "2015-08-30T12:36:00Z",
        "20150830t123600z",
        "20150230T000000Z",
        "21000229T000000Z",
        "20151301T000000Z",
        "20150001T000000Z",
        "20150830T240000Z",
        "20150830T126000Z",
        "20150830T123660Z",
        "19691231T235959Z",
        "00000101T000000Z",
        "+0150830T123600Z",
        "20150830T1236é0Z",
    ] {
        assert_eq!(SigV4Timestamp::parse(text), None, "{text}");
    }
}

proptest! {
    #[test]
    fn timestamps_round_trip(seconds in 0..=LAST_SECOND) {
        let written = at(seconds);
        prop_assert_eq!(SigV4Timestamp::parse(written.as_str()), Some(written));
    }

    #[test]
    fn parsing_never_panics(text in ".{0,20}") {
        SigV4Timestamp::parse(&text);
    }
}

#[test]
fn paths_are_normalised_and_encoded() {
    for (input, expected) in [
        ("", "/"),
        ("/", "/"),
        ("//", "/"),
        ("/./", "/"),
        ("/example/..", "/"),
        ("/example1/example2/../..", "/"),
        ("/..", "/"),
        ("//example//", "/example/"),
        ("/./example", "/example"),
        ("/a/./b/../c", "/a/c"),
        ("/a/.", "/a/"),
        ("/example space/", "/example%20space/"),
        ("/example%20space/", "/example%2520space/"),
        ("/\u{1234}", "/%E1%88%B4"),
        ("/-._~0Az", "/-._~0Az"),
        ("/a:b@c", "/a%3Ab%40c"),
    ] {
        assert_eq!(canonical_path(input), expected, "{input}");
    }
}

#[test]
fn queries_are_sorted_and_encoded() {
    for (input, expected) in [
        ("", ""),
        ("b=2&a=1", "a=1&b=2"),
        ("a=2&a=1&A=3", "A=3&a=1&a=2"),
        ("flag", "flag="),
        ("a=x%2Fy&b=c+d", "a=x%2Fy&b=c%20d"),
        ("a=x/y", "a=x%2Fy"),
        ("\u{1234}=bar", "%E1%88%B4=bar"),
        ("sig=a%3D%3D", "sig=a%3D%3D"),
    ] {
        assert_eq!(canonical_query(input), expected, "{input}");
    }
}

#[test]
fn whitespace_in_values_is_collapsed() {
    assert_eq!(trim("  a   b \t c  "), "a b c");
    assert_eq!(trim(""), "");
}
