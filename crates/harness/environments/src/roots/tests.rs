//! The selection, its text, and what steps make of it.

mod step;
mod text;

use exec_wire::path_uri::PathUri;

use super::{RootId, SelectedCapabilityRoot, SelectedRoots};
use crate::fakes::id;

/// Selects a root.
fn root(name: &str, environment: &str) -> SelectedCapabilityRoot {
    let path = PathUri::parse(&format!("file:///roots/{name}")).unwrap();
    SelectedCapabilityRoot::new(RootId::new(name).unwrap(), id(environment), path)
}

/// Selects roots.
fn selection(roots: &[(&str, &str)]) -> SelectedRoots {
    let roots = roots
        .iter()
        .map(|(name, environment)| root(name, environment));
    SelectedRoots::new(roots).unwrap()
}
