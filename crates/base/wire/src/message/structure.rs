//! Structural checks of a JSON text, independent of its meaning.

use std::{borrow::Cow, collections::HashSet, fmt};

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

use crate::limits;

/// Checks that `text` is one JSON object without duplicate keys and within the limits.
pub fn check_structure(text: &str) -> Result<(), MessageStructureError> {
    if !text.trim_ascii_start().starts_with('{') {
        // Distinguish text that is not JSON from JSON that is not an object.
        return match serde_json::from_str::<de::IgnoredAny>(text) {
            Ok(_) => Err(MessageStructureError::NotAnObject),
            Err(error) => Err(MessageStructureError::Json(error.to_string())),
        };
    }
    let mut remaining = limits::MAX_JSON_VALUES;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    StructureVisitor {
        remaining: &mut remaining,
    }
    .deserialize(&mut deserializer)
    .and_then(|()| deserializer.end())
    .map_err(|error| MessageStructureError::Json(error.to_string()))
}

/// Peer: the text violates a structural rule.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageStructureError {
    /// Invalid JSON, or a limit was exceeded.
    #[error("{0}")]
    Json(String),
    /// Valid JSON, but not an object.
    #[error("expected a JSON-RPC object")]
    NotAnObject,
}

/// Objects with up to this many keys, nearly all, are searched linearly and need no hash table.
const LINEAR_KEYS: usize = 16;

/// Visits and counts every value. `serde_json` limits the nesting to 128.
struct StructureVisitor<'a> {
    remaining: &'a mut usize,
}

impl<'de> DeserializeSeed<'de> for StructureVisitor<'_> {
    type Value = ();

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Some(remaining) = self.remaining.checked_sub(1) else {
            return Err(de::Error::custom(format_args!(
                "more than {} JSON values in one message",
                limits::MAX_JSON_VALUES
            )));
        };
        *self.remaining = remaining;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StructureVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items
            .next_element_seed(StructureVisitor {
                remaining: self.remaining,
            })?
            .is_some()
        {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut keys = KeySet::default();
        while let Some(key) = members.next_key_seed(KeySeed)? {
            if let Some(duplicate) = keys.insert(key) {
                return Err(de::Error::custom(format_args!(
                    "duplicate JSON object key `{duplicate}`"
                )));
            }
            members.next_value_seed(StructureVisitor {
                remaining: self.remaining,
            })?;
        }
        Ok(())
    }
}

/// Object key, borrowed from the text unless it contains escapes.
struct KeySeed;

impl<'de> DeserializeSeed<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: de::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KeySeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object key")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Keys of one object seen so far.
#[derive(Default)]
struct KeySet<'de> {
    few: Vec<Cow<'de, str>>,
    many: HashSet<Cow<'de, str>>,
}

impl<'de> KeySet<'de> {
    /// Inserts a key. Returns it if it is a duplicate.
    fn insert(&mut self, key: Cow<'de, str>) -> Option<Cow<'de, str>> {
        if self.many.is_empty() {
            if self.few.contains(&key) {
                return Some(key);
            }
            self.few.push(key);
            if self.few.len() > LINEAR_KEYS {
                self.many.extend(self.few.drain(..));
            }
            return None;
        }
        if self.many.contains(&key) {
            return Some(key);
        }
        self.many.insert(key);
        None
    }
}
