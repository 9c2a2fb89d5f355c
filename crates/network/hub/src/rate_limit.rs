//! Rate limiter: token buckets per principal and per address.
//! Invariant: tables are bounded. When one is full of active keys, new keys share one bucket, so
//! that a flood of addresses does not affect known ones.
//! Not limited: `register` and executor websockets, because executors treat a refusal as final.
//! Failed authentication there is limited by address.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::principal::PrincipalName;

/// Buckets of each kind: a few megabytes at most.
const CAPACITY: usize = 16_384;

/// Limits per address and per principal.
#[derive(Clone, Copy, Debug)]
pub struct RateLimitConfig {
    /// All requests of one address, before authentication.
    pub address: RateRule,
    /// Requests of one kind by one principal.
    pub principal: RateRule,
}

impl Default for RateLimitConfig {
    /// Allows a fleet of a thousand to reconnect at once from one address or as one principal, but
    /// not continuously.
    fn default() -> Self {
        Self {
            address: RateRule {
                burst: 8192,
                per_second: 1000,
            },
            principal: RateRule {
                burst: 2048,
                per_second: 200,
            },
        }
    }
}

/// A rate-limited kind of request.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum LimitedRequest {
    /// A harness asks for a connection.
    Connect,
    /// An executor validates a harness.
    Validate,
    /// A principal lists or removes environments.
    Admin,
    /// A harness opens a direct websocket.
    Direct,
}

/// All rate limits of a hub.
#[derive(Debug)]
pub struct RateLimiter(Mutex<RateTables>);

#[derive(Debug)]
struct RateTables {
    addresses: TokenBuckets<IpAddr>,
    principals: TokenBuckets<(LimitedRequest, PrincipalName)>,
}

impl RateLimiter {
    /// Creates full buckets.
    pub fn new(rules: RateLimitConfig) -> Self {
        Self(Mutex::new(RateTables {
            addresses: TokenBuckets::new(rules.address, CAPACITY),
            principals: TokenBuckets::new(rules.principal, CAPACITY),
        }))
    }

    /// Counts a request of an address.
    ///
    /// # Errors
    /// Returns an error above the limit.
    pub fn address(&self, address: IpAddr, now: Instant) -> Result<(), RateLimitExceeded> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = tables.addresses.take(subscriber_network(address), now);
        result.map_err(|retry_after| RateLimitExceeded { retry_after })
    }

    /// Counts a request of a principal.
    ///
    /// # Errors
    /// Returns an error above the limit.
    pub fn principal(
        &self,
        kind: LimitedRequest,
        principal: &PrincipalName,
        now: Instant,
    ) -> Result<(), RateLimitExceeded> {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let result = tables.principals.take((kind, principal.clone()), now);
        result.map_err(|retry_after| RateLimitExceeded { retry_after })
    }
}

/// Peer: the rate limit is exceeded.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("too many requests")]
pub struct RateLimitExceeded {
    /// Time until the next request is allowed.
    pub retry_after: Duration,
}

/// Returns the network of one subscriber: an IPv4 address, or a /64 prefix of IPv6.
pub(crate) fn subscriber_network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let prefix = address.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(prefix))
        }
        address @ IpAddr::V4(_) => address,
    }
}

/// Parameters of a token bucket.
#[derive(Clone, Copy, Debug)]
pub struct RateRule {
    /// Capacity: requests allowed at once.
    pub burst: u32,
    /// Refill rate: requests per second.
    pub per_second: u32,
}

impl RateRule {
    /// Returns the time until one more request is allowed.
    pub(crate) fn interval(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }
}

/// One token bucket per key, all with the same rule.
#[derive(Debug)]
pub struct TokenBuckets<K> {
    rule: RateRule,
    capacity: usize,
    table: HashMap<K, TokenBucket>,
    /// Shared by keys that find the table full.
    overflow: TokenBucket,
    swept_at: Option<Instant>,
}

impl<K: Eq + Hash> TokenBuckets<K> {
    /// Minimum interval between searches for idle buckets in a full table.
    const SWEEP: Duration = Duration::from_secs(1);

    /// Creates a table of at most `capacity` buckets.
    pub fn new(rule: RateRule, capacity: usize) -> Self {
        Self {
            rule,
            capacity,
            table: HashMap::new(),
            overflow: TokenBucket::default(),
            swept_at: None,
        }
    }

    /// Takes one token.
    ///
    /// # Errors
    /// Returns the time until a token is available.
    pub fn take(&mut self, key: K, now: Instant) -> Result<(), Duration> {
        let is_new = !self.table.contains_key(&key);
        if is_new && self.table.len() >= self.capacity {
            self.sweep(now);
        }
        let bucket = if is_new && self.table.len() >= self.capacity {
            &mut self.overflow
        } else {
            self.table.entry(key).or_default()
        };
        bucket.take(self.rule.burst, self.rule.interval(), now)
    }

    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Removes full buckets, which are equivalent to new ones.
    fn sweep(&mut self, now: Instant) {
        let since = self.swept_at.map(|at| now.saturating_duration_since(at));
        if since.is_some_and(|since| since < Self::SWEEP) {
            return;
        }
        self.swept_at = Some(now);
        self.table
            .retain(|_, bucket| !bucket.missing(now).is_zero());
    }
}

/// A token bucket, represented by the time at which it is full.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TokenBucket {
    full_at: Option<Instant>,
}

impl TokenBucket {
    /// Takes one of `burst` tokens, of which one returns in each `interval`.
    ///
    /// # Errors
    /// Returns the time until a token is available.
    pub(crate) fn take(
        &mut self,
        burst: u32,
        interval: Duration,
        now: Instant,
    ) -> Result<(), Duration> {
        let missing = self.missing(now) + interval;
        let capacity = interval * burst;
        if missing > capacity {
            return Err(missing - capacity);
        }
        self.full_at = now.checked_add(missing);
        Ok(())
    }

    /// Returns the time until the bucket is full.
    fn missing(self, now: Instant) -> Duration {
        let until = |at: Instant| at.saturating_duration_since(now);
        self.full_at.map_or(Duration::ZERO, until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_subscriber_share_a_bucket() {
        let parse = |text: &str| subscriber_network(text.parse().unwrap());
        assert_eq!(parse("2001:db8::1"), parse("2001:db8::ffff:0:0:2"));
        assert_ne!(parse("2001:db8::1"), parse("2001:db8:0:1::1"));
        assert_eq!(parse("::ffff:192.0.2.1"), parse("192.0.2.1"));
        assert_ne!(parse("192.0.2.2"), parse("192.0.2.1"));
    }

    #[test]
    fn kinds_and_principals_are_limited_separately() {
        let one = RateRule {
            burst: 1,
            per_second: 1,
        };
        let limits = RateLimiter::new(RateLimitConfig {
            address: one,
            principal: one,
        });
        let (now, alice) = (Instant::now(), "alice".parse().unwrap());
        assert!(
            limits
                .principal(LimitedRequest::Connect, &alice, now)
                .is_ok()
        );
        assert!(
            limits
                .principal(LimitedRequest::Connect, &alice, now)
                .is_err()
        );
        assert!(
            limits
                .principal(LimitedRequest::Validate, &alice, now)
                .is_ok()
        );
        assert!(
            limits
                .principal(LimitedRequest::Connect, &"bob".parse().unwrap(), now)
                .is_ok()
        );
        let address = "192.0.2.1".parse().unwrap();
        assert!(limits.address(address, now).is_ok());
        let refused = limits.address(address, now).unwrap_err();
        assert_eq!(refused.retry_after, Duration::from_secs(1));
    }

    const RULE: RateRule = RateRule {
        burst: 3,
        per_second: 10,
    };

    #[test]
    fn bucket_allows_a_burst_then_a_steady_rate() {
        let (mut buckets, t0) = (TokenBuckets::new(RULE, 8), Instant::now());
        for _ in 0..3 {
            assert_eq!(buckets.take("a", t0), Ok(()));
        }
        assert_eq!(buckets.take("a", t0), Err(Duration::from_millis(100)));
        assert_eq!(buckets.take("b", t0), Ok(()), "buckets are independent");
        let t1 = t0 + Duration::from_millis(100);
        assert_eq!(buckets.take("a", t1), Ok(()));
        assert_eq!(buckets.take("a", t1), Err(Duration::from_millis(100)));
        let t2 = t1 + Duration::from_secs(3600);
        let granted = (0..100).filter(|_| buckets.take("a", t2).is_ok()).count();
        assert_eq!(granted, 3, "waiting longer accumulates at most a burst");
    }

    #[test]
    fn token_returns_after_exactly_one_interval() {
        let (now, interval) = (Instant::now(), Duration::from_secs(1));
        let mut bucket = TokenBucket::default();
        let mut passed = |at| {
            (0..10)
                .filter(|_| bucket.take(3, interval, at).is_ok())
                .count()
        };
        assert_eq!(passed(now), 3);
        assert_eq!(passed(now + interval - Duration::from_nanos(1)), 0);
        assert_eq!(passed(now + interval), 1);
        assert_eq!(passed(now + interval * 3), 2);
        assert_eq!(passed(now + interval * 100), 3);
    }

    #[test]
    fn refused_request_takes_no_token() {
        let (mut buckets, t0) = (TokenBuckets::new(RULE, 8), Instant::now());
        let refused = (0..100).filter(|_| buckets.take("a", t0).is_err()).count();
        assert_eq!(refused, 97);
        assert_eq!(buckets.take("a", t0 + Duration::from_millis(100)), Ok(()));
    }

    #[test]
    fn full_table_shares_a_bucket_and_drops_idle_keys() {
        let (mut buckets, t0) = (TokenBuckets::new(RULE, 4), Instant::now());
        for key in 0..4 {
            buckets.take(key, t0).unwrap();
        }
        let overflow = (4..1000)
            .filter(|key| buckets.take(*key, t0).is_ok())
            .count();
        assert_eq!((overflow, buckets.len()), (3, 4));
        assert_eq!(buckets.take(0, t0), Ok(()), "known keys are not affected");
        let later = t0 + Duration::from_secs(2);
        assert_eq!(buckets.take(5000, later), Ok(()));
        assert_eq!(buckets.len(), 1);
    }
}
