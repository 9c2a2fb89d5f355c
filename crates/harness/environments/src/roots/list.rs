//! The selection of a thread.

use exec_wire::limits;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::selected::SelectedCapabilityRoot;

/// The roots that a thread has selected, in its order, each once. At most [`MAX_SELECTED_ROOTS`].
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct SelectedRoots(Vec<SelectedCapabilityRoot>);

impl SelectedRoots {
    /// Takes a selection. What is selected twice counts once.
    pub fn new(
        roots: impl IntoIterator<Item = SelectedCapabilityRoot>,
    ) -> Result<Self, TooManyRoots> {
        let mut kept = Vec::new();
        for root in roots {
            if kept.contains(&root) {
                continue;
            }
            if kept.len() == MAX_SELECTED_ROOTS {
                return Err(TooManyRoots);
            }
            kept.push(root);
        }
        Ok(Self(kept))
    }

    /// Returns the roots in their order.
    pub fn iter(&self) -> std::slice::Iter<'_, SelectedCapabilityRoot> {
        self.0.iter()
    }

    /// Tells how many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'a> IntoIterator for &'a SelectedRoots {
    type Item = &'a SelectedCapabilityRoot;
    type IntoIter = std::slice::Iter<'a, SelectedCapabilityRoot>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'de> Deserialize<'de> for SelectedRoots {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let roots = Vec::deserialize(deserializer)?;
        Self::new(roots).map_err(de::Error::custom)
    }
}

/// Caller: more roots are selected than a thread may have.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("more than {MAX_SELECTED_ROOTS} capability roots are selected")]
pub struct TooManyRoots;

/// Roots of one thread: what one discovery may ask for.
pub const MAX_SELECTED_ROOTS: usize = limits::MAX_DISCOVERY_ROOTS;
