//! Tables of observed behaviour, one file per job, and properties over arbitrary input.

mod comparing;
mod joining;
mod lexical;
mod native;
mod parsing;
mod properties;

use super::PathUri;

fn uri(text: &str) -> PathUri {
    PathUri::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}
