//! One environment as a store keeps it: whose it is, and the rules by which a registration replaces
//! another.
//! Pure: stores bring the old record, who is connected, and the time.

use std::time::Duration;

use exec_relay::identity::PublicKey;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{
    ClaimError, EnvironmentId, NewRegistration, Presence, RegisterError, RegistrationId, Timestamp,
};
use crate::principal::PrincipalName;

/// The current registration of an environment.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// The environment.
    pub environment: EnvironmentId,
    /// Its id.
    pub id: RegistrationId,
    /// The executor's static keys.
    pub executor_key: PublicKey,
    /// The principal that owns the environment, and made this registration.
    pub owner: PrincipalName,
    /// When it was made.
    pub created_at: Timestamp,
}

impl Registration {
    fn holds_against(&self, loss: &Superseded, seen: &Attendance, now: Timestamp) -> bool {
        let connected = seen.connected.as_ref();
        if connected.is_some_and(|presence| presence.registration == self.id) {
            return true;
        }
        // It came after the loss, and may have left a moment ago.
        now.since(loss.at.max(seen.left_at)) < Record::SETTLE
    }
}

/// Who is connected for an environment, and who was.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Attendance {
    /// The executor that is connected.
    pub connected: Option<Presence>,
    /// When the last one left, or may have left at the latest: a store that was started since does
    /// not know.
    pub left_at: Timestamp,
}

/// An environment: its owner, its current registration, and who lost it lately.
///
/// The first principal to register it in whichever way owns it, until it is removed.
/// Executors have one key per process. The newest process wins. A process that was superseded and
/// comes back is told to wait for as long as its successor is connected, and for [`Record::SETTLE`]
/// after that: otherwise two executors of one name would throw each other out for ever, and one that
/// connects again would lose its place for it.
/// Those who wait are the standby: when the successor leaves, the first to ask takes over.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Whose it is.
    pub owner: PrincipalName,
    /// The current registration. `None`: only direct executors have come so far.
    pub current: Option<Registration>,
    /// Executors that lost the environment, the latest last. At most [`Record::MAX_SUPERSEDED`].
    pub superseded: Vec<Superseded>,
}

impl Record {
    /// How long a superseded executor waits although its successor is not connected: the time the
    /// successor has to open its socket, or to open it again.
    pub const SETTLE: Duration = Duration::from_secs(30);

    /// How many losers are remembered. More executors of one name than this may alternate.
    pub const MAX_SUPERSEDED: usize = 8;

    /// Decides whose an environment is: the record to store, or `None` when the principal owns it
    /// already.
    ///
    /// # Errors
    /// [`ClaimError::Foreign`]; the record stays as it is.
    pub fn claim(
        previous: Option<&Self>,
        principal: &PrincipalName,
    ) -> Result<Option<Self>, ClaimError> {
        match previous {
            Some(record) if record.owner == *principal => Ok(None),
            Some(_) => Err(ClaimError::Foreign),
            None => Ok(Some(Self {
                owner: principal.clone(),
                current: None,
                superseded: Vec::new(),
            })),
        }
    }

    /// Decides on a registration: the record to store in place of `previous`, and what is current
    /// in it.
    ///
    /// `seen` tells of the executors that are and were connected for the environment.
    ///
    /// # Errors
    /// [`RegisterError::Foreign`] and [`RegisterError::Conflict`]; the record stays as it is.
    pub fn register(
        previous: Option<&Self>,
        seen: &Attendance,
        new: NewRegistration,
    ) -> Result<(Self, Registration), RegisterError> {
        let mut record = match (Self::claim(previous, &new.principal)?, previous) {
            (None, Some(previous)) => previous.clone(),
            (Some(fresh), _) => fresh,
            (None, None) => return Err(RegisterError::Foreign),
        };
        let current = Registration {
            environment: new.environment,
            id: new.id,
            executor_key: new.executor_key,
            owner: new.principal,
            created_at: new.at,
        };
        if let Some(before) = &record.current
            && before.executor_key != current.executor_key
        {
            let newcomer = KeyPrint::of(&current.executor_key);
            let superseded = &mut record.superseded;
            if let Some(loss) = superseded.iter().find(|loss| loss.key == newcomer)
                && before.holds_against(loss, seen, new.at)
            {
                return Err(RegisterError::Conflict);
            }
            superseded.retain(|loss| loss.key != newcomer);
            superseded.push(Superseded {
                key: KeyPrint::of(&before.executor_key),
                at: new.at,
            });
            if superseded.len() > Self::MAX_SUPERSEDED {
                superseded.remove(0);
            }
        }
        record.current = Some(current.clone());
        Ok((record, current))
    }
}

/// An executor that lost its environment to another.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Superseded {
    /// Its key.
    pub key: KeyPrint,
    /// When it lost.
    pub at: Timestamp,
}

/// The first 128 bits of a key's SHA-256, in hexadecimal: enough to know it again.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct KeyPrint(String);

impl KeyPrint {
    /// Takes the print of a key.
    pub fn of(key: &PublicKey) -> Self {
        // The JSON of a key is canonical: three strings of fixed length.
        let json = serde_json::to_vec(key).unwrap_or_default();
        let digest = Sha256::digest(json);
        let digits = digest.iter().take(16).map(|byte| format!("{byte:02x}"));
        Self(digits.collect())
    }
}
