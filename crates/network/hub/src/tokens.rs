//! How a request proves who makes it: tokens of the token file, and signed JWTs.
//! Invariant: a token itself exists only where it is made and where it is presented; the file, the
//! memory of the hub and every log hold hashes and ids.
//! Not here: what a principal may do (`principal`), signed requests of direct executors (`direct`).

mod authenticator;
mod edit;
mod file;
#[cfg(test)]
mod tests;

pub use self::{
    authenticator::{AuthenticateError, Authenticator, JwtAuthority, JwtError},
    edit::{EditError, NewToken, create, list, revoke},
    file::{Entry, EntryProblem, ReadError},
};

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use aws_lc_rs::{error::Unspecified, rand};
use base64_simd::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest, Sha256};

use self::file::Table;

/// How often the file is looked at: a revoked token is refused within a second.
const LOOK: Duration = Duration::from_millis(400);

/// The tokens that count now. Cheap to clone: all clones see the same.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    table: RwLock<Arc<Table>>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    stamp: Option<Stamp>,
    health: Health,
}

/// Whether the tokens in use are those of the file.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Health {
    /// They are.
    Current,
    /// There is no file. Nobody gets in by a token.
    Missing,
    /// The file is broken, and this is how; the tokens it had before still count.
    Stale(String),
}

impl Tokens {
    /// Reads the file. One that is not there yet has no tokens: it may come later. Blocks.
    ///
    /// # Errors
    /// When it is there and cannot be used.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let stamp = stamp(path);
        let (table, health) = match file::read(path) {
            Ok(entries) => (Table::new(entries), Health::Current),
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                (Table::default(), Health::Missing)
            }
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            table: RwLock::new(Arc::new(table)),
            seen: Mutex::new(Seen { stamp, health }),
        })))
    }

    /// Follows the file for as long as the future lives.
    pub async fn follow(&self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let tokens = self.clone();
            // A look that panicked has changed nothing; the next one may do better.
            drop(tokio::task::spawn_blocking(move || tokens.look()).await);
        }
    }

    /// Looks whether the file has changed, and takes over what it holds now. Blocks.
    ///
    /// A file that is gone is believed when it is gone twice in a row: an editor that moves a new
    /// one into its place leaves a moment without.
    pub fn look(&self) {
        let stamp = stamp(&self.0.path);
        let mut seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if stamp == seen.stamp {
            if stamp.is_none() && seen.health != Health::Missing {
                self.put(Table::default());
                seen.health = Health::Missing;
                tracing::warn!(path = %self.0.path.display(), "the token file is gone: no token counts");
            }
            return;
        }
        seen.stamp = stamp;
        if stamp.is_none() {
            return;
        }
        match file::read(&self.0.path) {
            Ok(entries) => {
                let table = Table::new(entries);
                tracing::info!(tokens = table.len(), "the token file was read again");
                self.put(table);
                seen.health = Health::Current;
            }
            // Gone between two looks: the next one sees to it.
            Err(ReadError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                seen.stamp = None;
            }
            Err(error) => {
                tracing::warn!(%error, "the token file is broken: the tokens it had before count");
                seen.health = Health::Stale(error.to_string());
            }
        }
    }

    /// Whether the tokens in use are those of the file.
    pub fn health(&self) -> Health {
        let seen = self.0.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.health.clone()
    }

    /// Finds a token, expired or not.
    fn find(&self, token: &str) -> Option<Arc<Entry>> {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.find(token).cloned()
    }

    fn put(&self, table: Table) {
        let mut current = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(table);
    }
}

/// Tells one state of a file from another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// `None`: it is not there, or cannot be looked at.
fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// A token: 256 random bits with a prefix that secret scanners can look for. `Debug` hides it.
#[derive(Clone)]
pub struct Token(String);

impl Token {
    const PREFIX: &str = "exh_";
    const BYTES: usize = 32;

    /// Makes a new one.
    ///
    /// # Errors
    /// When the host has no randomness.
    fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; Self::BYTES];
        rand::fill(&mut bytes)?;
        let text = URL_SAFE_NO_PAD.encode_to_string(bytes);
        Ok(Self(format!("{}{text}", Self::PREFIX)))
    }

    /// The text of it, to be shown once to whoever asked for the token.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// The SHA-256 of a token, which is all that the hub keeps of it.
///
/// Tokens are looked up by it. That takes no constant time and need not: a token has 256 random
/// bits, so nobody can choose hashes near to one that exists.
#[derive(Clone, Copy, Eq, Hash, PartialEq)]
struct Digest256([u8; 32]);

impl Digest256 {
    fn of(token: &str) -> Self {
        Self(Sha256::digest(token).into())
    }

    fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads 64 hexadecimal digits.
    fn from_hex(hex: &str) -> Option<Self> {
        let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(pairs) {
            let [high, low] = pair.map(|digit| char::from(digit).to_digit(16));
            *byte = u8::try_from(high? << 4 | low?).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Debug for Digest256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest256(..)")
    }
}

/// Names a token in lists and logs. No secret.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct TokenId(String);

impl TokenId {
    /// The longest id.
    const MAX_BYTES: usize = 64;

    /// Takes an id. `None`: it is empty, too long, or has characters that need quoting somewhere.
    pub fn new(text: &str) -> Option<Self> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
        let good = !text.is_empty() && text.len() <= Self::MAX_BYTES && text.bytes().all(plain);
        good.then(|| Self(text.to_owned()))
    }

    /// Makes a new one: short enough to type.
    fn generate() -> Result<Self, Unspecified> {
        let mut bytes = [0; 5];
        rand::fill(&mut bytes)?;
        Ok(Self(
            bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        ))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
