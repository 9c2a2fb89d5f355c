//! Where a hub keeps what it must not forget.

use std::path::PathBuf;

use anyhow::Context;

use crate::{cli::TokenPlace, config::Lookup};

/// The files of a hub.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Places {
    /// The directory of the hub.
    pub(super) data_dir: PathBuf,
    /// The file with the tokens.
    pub(super) token_file: PathBuf,
}

impl Places {
    /// Finds them. Nothing is made.
    pub(super) fn find(place: &TokenPlace, lookup: Lookup<'_>) -> anyhow::Result<Self> {
        let set = |name| lookup(name).filter(|value| !value.is_empty());
        let ours = || Some(PathBuf::from(set("EXEC_SERVER_HOME")?).join("hub"));
        let accounts = || Some(PathBuf::from(set("HOME")?).join(".local/share/exec-server/hub"));
        let given = place.data_dir.clone();
        let data_dir = given.or_else(ours).or_else(accounts);
        let data_dir = data_dir.context("HOME is not set: give --data-dir")?;
        let token_file = place.token_file.clone();
        Ok(Self {
            token_file: token_file.unwrap_or_else(|| data_dir.join("tokens.toml")),
            data_dir,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn found(place: &TokenPlace, variables: &[(&str, &str)]) -> Option<(String, String)> {
        let lookup = |name: &str| {
            let set = variables.iter().find(|(variable, _)| *variable == name);
            set.map(|(_, value)| OsString::from(value))
        };
        let places = Places::find(place, &lookup).ok()?;
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        Some((text(places.data_dir), text(places.token_file)))
    }

    #[test]
    fn flags_come_before_our_home_and_that_before_the_accounts() {
        let nothing = TokenPlace::default();
        let both = [("EXEC_SERVER_HOME", "/e"), ("HOME", "/h")];
        let pair = |dir: &str, file: &str| Some((dir.to_owned(), file.to_owned()));
        assert_eq!(found(&nothing, &both), pair("/e/hub", "/e/hub/tokens.toml"));
        let account = "/h/.local/share/exec-server/hub";
        let blank = [("EXEC_SERVER_HOME", ""), ("HOME", "/h")];
        assert_eq!(
            found(&nothing, &blank),
            pair(account, &format!("{account}/tokens.toml"))
        );
        assert_eq!(found(&nothing, &[]), None);
        let dir = TokenPlace {
            data_dir: Some("/d".into()),
            token_file: None,
        };
        assert_eq!(found(&dir, &both), pair("/d", "/d/tokens.toml"));
        let file = TokenPlace {
            data_dir: None,
            token_file: Some("t".into()),
        };
        assert_eq!(found(&file, &both), pair("/e/hub", "t"));
    }
}
