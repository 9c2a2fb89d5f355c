//! Text that nobody else may see.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A secret text, such as an authorization or a signed URL. `Debug` hides it.
#[derive(Clone, Deserialize, Eq, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Takes a text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text. Whoever calls this sees to it that it is not shown.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the text, and nothing is left.
    pub fn into_exposed(self) -> String {
        self.0
    }

    /// Tells whether there is nothing but blanks in it.
    pub fn is_blank(&self) -> bool {
        self.0.trim().is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
