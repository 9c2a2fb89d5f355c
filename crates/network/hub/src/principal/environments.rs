//! Which environments a token names.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

use crate::store::EnvironmentId;

/// The globs of a token, such as `build-*`. None at all is no name at all.
#[derive(Clone, Debug, Default)]
pub struct Environments {
    globs: Vec<String>,
    set: Option<GlobSet>,
}

impl Environments {
    /// The longest glob, and how many a token may have: more than any list people keep by hand.
    pub const MAX_GLOB_BYTES: usize = 256;
    /// See [`Environments::MAX_GLOB_BYTES`].
    pub const MAX_GLOBS: usize = 64;

    /// Takes the globs.
    ///
    /// # Errors
    /// When there are too many, or one is too long or does not parse.
    pub fn new(globs: Vec<String>) -> Result<Self, GlobError> {
        if globs.len() > Self::MAX_GLOBS {
            return Err(GlobError::TooMany);
        }
        if globs.is_empty() {
            return Ok(Self::default());
        }
        let mut set = GlobSetBuilder::new();
        for (index, glob) in globs.iter().enumerate() {
            if glob.is_empty() || glob.len() > Self::MAX_GLOB_BYTES {
                return Err(GlobError::Length { index });
            }
            let parsed = GlobBuilder::new(glob)
                .build()
                .map_err(|source| GlobError::Syntax { index, source })?;
            set.add(parsed);
        }
        let set = set.build().map_err(GlobError::TooComplex)?;
        Ok(Self {
            globs,
            set: Some(set),
        })
    }

    /// Whether one of the globs matches.
    pub fn name(&self, environment: &EnvironmentId) -> bool {
        let matches = |set: &GlobSet| set.is_match(environment.as_str());
        self.set.as_ref().is_some_and(matches)
    }

    /// Whether there are no globs.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// The globs as they were given.
    pub fn globs(&self) -> &[String] {
        &self.globs
    }
}

/// Caller: the globs cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GlobError {
    /// Caller: too many.
    #[error("more than {} environment globs", Environments::MAX_GLOBS)]
    TooMany,
    /// Caller: empty or too long.
    #[error(
        "environment glob {index} must have 1 to {} bytes",
        Environments::MAX_GLOB_BYTES
    )]
    Length {
        /// Which one, from 0.
        index: usize,
    },
    /// Caller: no glob.
    #[error("environment glob {index} is no glob")]
    Syntax {
        /// Which one, from 0.
        index: usize,
        /// What is wrong.
        source: globset::Error,
    },
    /// Caller: all of them together are too much.
    #[error("the environment globs are too complex")]
    TooComplex(#[source] globset::Error),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environments(globs: &[&str]) -> Result<Environments, GlobError> {
        Environments::new(globs.iter().map(|&glob| glob.to_owned()).collect())
    }

    #[test]
    fn globs_name_what_they_match_and_no_more() {
        let build = environments(&["build-*", "box_{1,2}"]).unwrap();
        let names = |id: &str| build.name(&id.parse().unwrap());
        assert!(names("build-7") && names("build-") && names("box_2"));
        assert!(!names("build") && !names("xbuild-7") && !names("box_3") && !names("Build-7"));
    }

    #[test]
    fn no_globs_name_nothing() {
        assert!(!environments(&[]).unwrap().name(&"a".parse().unwrap()));
    }

    #[test]
    fn bad_globs_are_refused() {
        assert!(matches!(
            environments(&["ok", "["]),
            Err(GlobError::Syntax { index: 1, .. })
        ));
        assert!(matches!(
            environments(&[""]),
            Err(GlobError::Length { index: 0 })
        ));
        let long = "x".repeat(Environments::MAX_GLOB_BYTES + 1);
        assert!(matches!(
            environments(&[&long]),
            Err(GlobError::Length { .. })
        ));
        assert!(matches!(environments(&["a"; 65]), Err(GlobError::TooMany)));
    }
}
