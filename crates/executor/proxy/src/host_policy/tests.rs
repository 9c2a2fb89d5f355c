use std::collections::BTreeMap;

use exec_wire::network::ProxyMode;
use proptest::prelude::*;

use super::*;
use crate::target_host::HostError;

const LOCAL: Verdict = Verdict::Deny(Reason::NotAllowedLocal);
const DENIED: Verdict = Verdict::Deny(Reason::Denied);

fn settings(domains: &[(&str, DomainRule)]) -> ProxySettings {
    let domains: BTreeMap<String, DomainRule> = domains
        .iter()
        .map(|&(pattern, rule)| (pattern.to_owned(), rule))
        .collect();
    ProxySettings {
        enabled: true,
        enable_socks5: true,
        enable_socks5_udp: false,
        allow_upstream_proxy: false,
        dangerously_allow_all_unix_sockets: false,
        allow_local_binding: false,
        mode: ProxyMode::Full,
        domains: Some(domains),
        unix_sockets: None,
        review_domains: None,
        credential_masking: false,
        credential_providers: BTreeMap::new(),
    }
}

fn policy(domains: &[(&str, DomainRule)]) -> HostPolicy {
    HostPolicy::new(&settings(domains)).unwrap()
}

fn host(text: &str) -> Host {
    Host::parse(text).unwrap()
}

#[test]
fn patterns_match_as_the_table_says() {
    use Verdict::{Allow, Undecided};
    let exact = policy(&[("Example.com.", DomainRule::Allow)]);
    let below = policy(&[("*.example.com", DomainRule::Allow)]);
    let tree = policy(&[("**.example.com", DomainRule::Allow)]);
    let any = policy(&[("*", DomainRule::Allow)]);
    let none = policy(&[("*", DomainRule::None), ("example.com", DomainRule::None)]);
    for (text, expected) in [
        ("example.com", [Allow, Undecided, Allow, Allow, Undecided]),
        ("EXAMPLE.com.", [Allow, Undecided, Allow, Allow, Undecided]),
        ("a.example.com", [Undecided, Allow, Allow, Allow, Undecided]),
        (
            "a.b.example.com",
            [Undecided, Allow, Allow, Allow, Undecided],
        ),
        (
            "notexample.com",
            [Undecided, Undecided, Undecided, Allow, Undecided],
        ),
        (
            "example.com.evil",
            [Undecided, Undecided, Undecided, Allow, Undecided],
        ),
        ("com", [Undecided, Undecided, Undecided, Allow, Undecided]),
        (
            "8.8.8.8",
            [Undecided, Undecided, Undecided, Allow, Undecided],
        ),
        ("127.0.0.1", [LOCAL; 5]),
    ] {
        let verdicts = [&exact, &below, &tree, &any, &none].map(|policy| policy.judge(&host(text)));
        assert_eq!(verdicts, expected, "{text}");
    }
}

#[test]
fn deny_wins_over_every_allow() {
    let policy = policy(&[
        ("*", DomainRule::Allow),
        ("good.evil.com", DomainRule::Allow),
        ("**.evil.com", DomainRule::Deny),
        ("Twice.com", DomainRule::Allow),
        ("twice.com", DomainRule::Deny),
        ("8.8.8.8", DomainRule::Deny),
    ]);
    for text in [
        "evil.com",
        "good.evil.com",
        "twice.com",
        "8.8.8.8",
        "134744072",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ] {
        assert_eq!(policy.judge(&host(text)), DENIED, "{text}");
    }
    assert_eq!(policy.judge(&host("other.com")), Verdict::Allow);
    let address = "8.8.8.8".parse().unwrap();
    assert_eq!(
        policy.permits(&host("other.com"), address),
        Err(Reason::Denied)
    );
}

#[test]
fn local_hosts_need_to_be_named() {
    let any = policy(&[
        ("*", DomainRule::Allow),
        ("**.localhost", DomainRule::Allow),
    ]);
    for text in [
        "localhost",
        "a.localhost",
        "127.0.0.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0",
        "10.1.2.3",
        "169.254.169.254",
        "100.64.0.1",
        "[::1]",
        "::ffff:127.0.0.1",
        "fd00::1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "224.0.0.1",
        "255.255.255.255",
    ] {
        assert_eq!(any.judge(&host(text)), LOCAL, "{text}");
    }
    let named = policy(&[
        ("127.0.0.1", DomainRule::Allow),
        ("[::1]", DomainRule::Allow),
        ("localhost", DomainRule::Allow),
    ]);
    for (text, expected) in [
        ("127.0.0.1", Verdict::Allow),
        ("127.1", Verdict::Allow),
        ("0:0::1", Verdict::Allow),
        ("LocalHost", Verdict::Allow),
        ("127.0.0.2", LOCAL),
        ("a.localhost", LOCAL),
    ] {
        assert_eq!(named.judge(&host(text)), expected, "{text}");
    }
}

#[test]
fn private_answers_are_refused_even_for_named_hosts() {
    let policy = policy(&[
        ("inside.example", DomainRule::Allow),
        ("localhost", DomainRule::Allow),
        ("10.0.0.1", DomainRule::Allow),
    ]);
    let permits = |name: &str, address: &str| policy.permits(&host(name), address.parse().unwrap());
    assert_eq!(permits("inside.example", "1.1.1.1"), Ok(()));
    assert_eq!(
        permits("inside.example", "10.0.0.1"),
        Err(Reason::NotAllowedLocal)
    );
    assert_eq!(
        permits("inside.example", "::ffff:10.0.0.1"),
        Err(Reason::NotAllowedLocal)
    );
    assert_eq!(permits("localhost", "127.0.0.1"), Ok(()));
    assert_eq!(permits("localhost", "::1"), Ok(()));
    assert_eq!(
        permits("localhost", "10.0.0.1"),
        Err(Reason::NotAllowedLocal)
    );
    assert_eq!(permits("10.0.0.1", "10.0.0.1"), Ok(()));
    assert_eq!(
        permits("10.0.0.1", "10.0.0.2"),
        Err(Reason::NotAllowedLocal)
    );
}

#[test]
fn local_binding_makes_local_hosts_ordinary_ones() {
    let mut settings = settings(&[
        ("10.0.0.1", DomainRule::Deny),
        ("*.in.example", DomainRule::Allow),
    ]);
    settings.allow_local_binding = true;
    let policy = HostPolicy::new(&settings).unwrap();
    assert_eq!(policy.judge(&host("127.0.0.1")), Verdict::Undecided);
    assert_eq!(policy.judge(&host("10.0.0.1")), DENIED);
    assert_eq!(policy.judge(&host("a.in.example")), Verdict::Allow);
    let permits = |address: &str| policy.permits(&host("a.in.example"), address.parse().unwrap());
    assert_eq!(permits("10.0.0.2"), Ok(()));
    assert_eq!(permits("10.0.0.1"), Err(Reason::Denied));
}

#[test]
fn reviewed_hosts_are_allowed_ones_that_are_asked_about() {
    let mut settings = settings(&[
        ("**.example.com", DomainRule::Allow),
        ("no.example.com", DomainRule::Deny),
    ]);
    settings.review_domains = Some(vec!["*.example.com".into(), "other.com".into()]);
    let policy = HostPolicy::new(&settings).unwrap();
    for (text, expected) in [
        ("example.com", Verdict::Allow),
        ("a.example.com", Verdict::Review),
        ("no.example.com", DENIED),
        ("other.com", Verdict::Undecided),
    ] {
        assert_eq!(policy.judge(&host(text)), expected, "{text}");
    }
}

#[test]
fn bad_patterns_are_refused_with_their_reason() {
    for (pattern, fault) in [
        ("example.com:443", PatternError::Port),
        ("[::1]:80", PatternError::Port),
        ("*.example.com:443", PatternError::Port),
        ("exa*mple.com", PatternError::Wildcard),
        ("**", PatternError::Wildcard),
        ("*.*.com", PatternError::Wildcard),
        ("***.com", PatternError::Wildcard),
        ("*.10.0.0.1", PatternError::BelowAddress),
        ("**.[::1]", PatternError::BelowAddress),
        ("", PatternError::Host(HostError::Malformed)),
        ("*.", PatternError::Host(HostError::Malformed)),
        (
            "https://example.com",
            PatternError::Host(HostError::Malformed),
        ),
        ("bücher.example", PatternError::Host(HostError::Malformed)),
        ("1.2.3.999", PatternError::Host(HostError::NoAddress)),
    ] {
        for rule in [DomainRule::Allow, DomainRule::Deny, DomainRule::None] {
            let error = HostPolicy::new(&settings(&[(pattern, rule)])).unwrap_err();
            assert_eq!(
                error,
                PolicyError::new("domains", pattern, fault),
                "{pattern}"
            );
        }
    }
    let error = HostPolicy::new(&settings(&[("*", DomainRule::Deny)])).unwrap_err();
    assert_eq!(
        error,
        PolicyError::new("domains", "*", PatternError::DenyAll)
    );
    let mut settings = settings(&[]);
    settings.review_domains = Some(vec!["a:1".into()]);
    let error = HostPolicy::new(&settings).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("`networkProxy.proxy.reviewDomains` has the pattern `a:1`")
    );
}

fn a_name() -> impl Strategy<Value = String> {
    "[a-c]{1,2}(\\.[a-c]{1,2}){0,3}"
}

proptest! {
    #[test]
    fn a_denied_host_is_denied_whatever_else_is_said(
        name in a_name(),
        others in proptest::collection::vec((a_name(), "(\\*\\.|\\*\\*\\.|)"), 0..6),
    ) {
        let mut domains: BTreeMap<String, DomainRule> = others
            .into_iter()
            .map(|(name, prefix)| (format!("{prefix}{name}"), DomainRule::Allow))
            .collect();
        domains.insert("*".into(), DomainRule::Allow);
        domains.insert(name.clone(), DomainRule::Deny);
        let mut settings = settings(&[]);
        settings.domains = Some(domains);
        let policy = HostPolicy::new(&settings).unwrap();
        prop_assert_eq!(policy.judge(&host(&name)), DENIED);
    }

    #[test]
    fn wildcards_match_by_whole_labels(name in a_name(), domain in a_name()) {
        let tree = policy(&[(&format!("**.{domain}"), DomainRule::Allow)]);
        let below = policy(&[(&format!("*.{domain}"), DomainRule::Allow)]);
        let is_below = name.ends_with(&format!(".{domain}"));
        let expect = |matches| if matches { Verdict::Allow } else { Verdict::Undecided };
        prop_assert_eq!(below.judge(&host(&name)), expect(is_below));
        prop_assert_eq!(tree.judge(&host(&name)), expect(is_below || name == domain));
    }

    #[test]
    fn no_local_address_passes_by_wildcard(bits: u128, name in a_name()) {
        let policy = policy(&[("*", DomainRule::Allow), ("**.a", DomainRule::Allow)]);
        let address = IpAddr::from(std::net::Ipv6Addr::from(bits));
        if target_host::is_local(address) {
            prop_assert_eq!(policy.judge(&Host::from(address)), LOCAL);
            prop_assert!(policy.permits(&host(&name), address).is_err());
        } else {
            prop_assert_eq!(policy.permits(&host(&name), address), Ok(()));
        }
    }
}
