use std::collections::BTreeMap;

use exec_wire::network::ProxyMode;
use proptest::prelude::*;

use super::*;
use crate::target_host::HostError;

const LOCAL: HostVerdict = HostVerdict::Deny(DenyReason::NotAllowedLocal);
const DENIED: HostVerdict = HostVerdict::Deny(DenyReason::Denied);

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

fn host(text: &str) -> TargetHost {
    TargetHost::parse(text).unwrap()
}

#[test]
fn patterns_match_as_documented() {
    use HostVerdict::{Allow, Undecided};
    let exact = policy(&[("Example.com.", DomainRule::Allow)]);
    let subdomains = policy(&[("*.example.com", DomainRule::Allow)]);
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
        let verdicts =
            [&exact, &subdomains, &tree, &any, &none].map(|policy| policy.evaluate(&host(text)));
        assert_eq!(verdicts, expected, "{text}");
    }
}

#[test]
fn deny_overrides_every_allow() {
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
        assert_eq!(policy.evaluate(&host(text)), DENIED, "{text}");
    }
    assert_eq!(policy.evaluate(&host("other.com")), HostVerdict::Allow);
    let address = "8.8.8.8".parse().unwrap();
    assert_eq!(
        policy.check_address(&host("other.com"), address),
        Err(DenyReason::Denied)
    );
}

#[test]
fn local_hosts_require_an_exact_pattern() {
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
        assert_eq!(any.evaluate(&host(text)), LOCAL, "{text}");
    }
    let named = policy(&[
        ("127.0.0.1", DomainRule::Allow),
        ("[::1]", DomainRule::Allow),
        ("localhost", DomainRule::Allow),
    ]);
    for (text, expected) in [
        ("127.0.0.1", HostVerdict::Allow),
        ("127.1", HostVerdict::Allow),
        ("0:0::1", HostVerdict::Allow),
        ("LocalHost", HostVerdict::Allow),
        ("127.0.0.2", LOCAL),
        ("a.localhost", LOCAL),
    ] {
        assert_eq!(named.evaluate(&host(text)), expected, "{text}");
    }
}

#[test]
fn private_addresses_are_refused_even_for_allowed_names() {
    let policy = policy(&[
        ("inside.example", DomainRule::Allow),
        ("localhost", DomainRule::Allow),
        ("10.0.0.1", DomainRule::Allow),
    ]);
    let check_address =
        |name: &str, address: &str| policy.check_address(&host(name), address.parse().unwrap());
    assert_eq!(check_address("inside.example", "1.1.1.1"), Ok(()));
    assert_eq!(
        check_address("inside.example", "10.0.0.1"),
        Err(DenyReason::NotAllowedLocal)
    );
    assert_eq!(
        check_address("inside.example", "::ffff:10.0.0.1"),
        Err(DenyReason::NotAllowedLocal)
    );
    assert_eq!(check_address("localhost", "127.0.0.1"), Ok(()));
    assert_eq!(check_address("localhost", "::1"), Ok(()));
    assert_eq!(
        check_address("localhost", "10.0.0.1"),
        Err(DenyReason::NotAllowedLocal)
    );
    assert_eq!(check_address("10.0.0.1", "10.0.0.1"), Ok(()));
    assert_eq!(
        check_address("10.0.0.1", "10.0.0.2"),
        Err(DenyReason::NotAllowedLocal)
    );
}

#[test]
fn local_binding_treats_local_hosts_like_others() {
    let mut settings = settings(&[
        ("10.0.0.1", DomainRule::Deny),
        ("*.in.example", DomainRule::Allow),
    ]);
    settings.allow_local_binding = true;
    let policy = HostPolicy::new(&settings).unwrap();
    assert_eq!(policy.evaluate(&host("127.0.0.1")), HostVerdict::Undecided);
    assert_eq!(policy.evaluate(&host("10.0.0.1")), DENIED);
    assert_eq!(policy.evaluate(&host("a.in.example")), HostVerdict::Allow);
    let check_address =
        |address: &str| policy.check_address(&host("a.in.example"), address.parse().unwrap());
    assert_eq!(check_address("10.0.0.2"), Ok(()));
    assert_eq!(check_address("10.0.0.1"), Err(DenyReason::Denied));
}

#[test]
fn review_applies_to_allowed_hosts_only() {
    let mut settings = settings(&[
        ("**.example.com", DomainRule::Allow),
        ("no.example.com", DomainRule::Deny),
    ]);
    settings.review_domains = Some(vec!["*.example.com".into(), "other.com".into()]);
    let policy = HostPolicy::new(&settings).unwrap();
    for (text, expected) in [
        ("example.com", HostVerdict::Allow),
        ("a.example.com", HostVerdict::Review),
        ("no.example.com", DENIED),
        ("other.com", HostVerdict::Undecided),
    ] {
        assert_eq!(policy.evaluate(&host(text)), expected, "{text}");
    }
}

#[test]
fn invalid_patterns_are_refused_with_a_reason() {
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
        ("1.2.3.999", PatternError::Host(HostError::InvalidIpv4)),
    ] {
        for rule in [DomainRule::Allow, DomainRule::Deny, DomainRule::None] {
            let error = HostPolicy::new(&settings(&[(pattern, rule)])).unwrap_err();
            assert_eq!(
                error,
                HostPolicyError::new("domains", pattern, fault),
                "{pattern}"
            );
        }
    }
    let error = HostPolicy::new(&settings(&[("*", DomainRule::Deny)])).unwrap_err();
    assert_eq!(
        error,
        HostPolicyError::new("domains", "*", PatternError::DenyAll)
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

fn host_name() -> impl Strategy<Value = String> {
    "[a-c]{1,2}(\\.[a-c]{1,2}){0,3}"
}

proptest! {
    #[test]
    fn denied_host_stays_denied_despite_other_patterns(
        name in host_name(),
        others in proptest::collection::vec((host_name(), "(\\*\\.|\\*\\*\\.|)"), 0..6),
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
        prop_assert_eq!(policy.evaluate(&host(&name)), DENIED);
    }

    #[test]
    fn wildcards_match_by_whole_labels(name in host_name(), domain in host_name()) {
        let tree = policy(&[(&format!("**.{domain}"), DomainRule::Allow)]);
        let subdomains = policy(&[(&format!("*.{domain}"), DomainRule::Allow)]);
        let is_below = name.ends_with(&format!(".{domain}"));
        let expect = |matches| if matches { HostVerdict::Allow } else { HostVerdict::Undecided };
        prop_assert_eq!(subdomains.evaluate(&host(&name)), expect(is_below));
        prop_assert_eq!(tree.evaluate(&host(&name)), expect(is_below || name == domain));
    }

    #[test]
    fn wildcards_never_allow_local_addresses(bits: u128, name in host_name()) {
        let policy = policy(&[("*", DomainRule::Allow), ("**.a", DomainRule::Allow)]);
        let address = IpAddr::from(std::net::Ipv6Addr::from(bits));
        if target_host::is_local(address) {
            prop_assert_eq!(policy.evaluate(&TargetHost::from(address)), LOCAL);
            prop_assert!(policy.check_address(&host(&name), address).is_err());
        } else {
            prop_assert_eq!(policy.check_address(&host(&name), address), Ok(()));
        }
    }
}
