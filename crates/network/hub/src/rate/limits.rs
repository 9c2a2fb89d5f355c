//! Which buckets a request takes from.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Buckets, Rule};
use crate::principal::PrincipalName;

/// Buckets of each kind: some megabytes at most.
const CAPACITY: usize = 16_384;

/// How often whom.
#[derive(Clone, Copy, Debug)]
pub struct RateRules {
    /// All requests of one address, before anybody looks at what they present.
    pub address: Rule,
    /// Requests of one kind of one principal.
    pub principal: Rule,
}

impl Default for RateRules {
    /// A fleet of a thousand that comes back all at once behind one address, or as one principal,
    /// is served. What goes on like that is not.
    fn default() -> Self {
        Self {
            address: Rule {
                burst: 8192,
                per_second: 1000,
            },
            principal: Rule {
                burst: 2048,
                per_second: 200,
            },
        }
    }
}

/// A kind of request that is limited.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Asked {
    /// A harness asks for the way to an environment.
    Connect,
    /// An executor asks about a harness.
    Validate,
    /// Somebody looks at environments or removes one.
    Admin,
    /// A harness opens a direct socket.
    Direct,
}

/// All buckets of a hub.
#[derive(Debug)]
pub struct RateLimits(Mutex<Tables>);

#[derive(Debug)]
struct Tables {
    addresses: Buckets<IpAddr>,
    principals: Buckets<(Asked, PrincipalName)>,
}

impl RateLimits {
    /// Makes full buckets.
    pub fn new(rules: RateRules) -> Self {
        Self(Mutex::new(Tables {
            addresses: Buckets::new(rules.address, CAPACITY),
            principals: Buckets::new(rules.principal, CAPACITY),
        }))
    }

    /// Counts a request of an address.
    ///
    /// # Errors
    /// When there were too many.
    pub fn address(&self, address: IpAddr, now: Instant) -> Result<(), Limited> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tables.addresses.take(network(address), now);
        taken.map_err(|retry_after| Limited { retry_after })
    }

    /// Counts a request of a principal.
    ///
    /// # Errors
    /// When there were too many.
    pub fn principal(
        &self,
        asked: Asked,
        principal: &PrincipalName,
        now: Instant,
    ) -> Result<(), Limited> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tables.principals.take((asked, principal.clone()), now);
        taken.map_err(|retry_after| Limited { retry_after })
    }
}

/// Peer: it asks too often.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("too many requests")]
pub struct Limited {
    /// How long to wait.
    pub retry_after: Duration,
}

/// What one subscriber has: an IPv4 address, or a /64 of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(prefix))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_subscriber_share_a_bucket() {
        let parse = |text: &str| network(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:0:0:2"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:192.0.2.1"), parse("192.0.2.1"));
        assert_ne!(parse("192.0.2.2"), parse("192.0.2.1"));
    }

    #[test]
    fn kinds_and_principals_are_counted_apart() {
        let one = Rule {
            burst: 1,
            per_second: 1,
        };
        let limits = RateLimits::new(RateRules {
            address: one,
            principal: one,
        });
        let (now, alice) = (Instant::now(), "alice".parse().unwrap());
        assert!(limits.principal(Asked::Connect, &alice, now).is_ok());
        assert!(limits.principal(Asked::Connect, &alice, now).is_err());
        assert!(limits.principal(Asked::Validate, &alice, now).is_ok());
        assert!(
            limits
                .principal(Asked::Connect, &"bob".parse().unwrap(), now)
                .is_ok()
        );
        let address = "192.0.2.1".parse().unwrap();
        assert!(limits.address(address, now).is_ok());
        let refused = limits.address(address, now).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_secs(1));
    }
}
