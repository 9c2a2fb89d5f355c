//! The shared files of the AWS tools: sections of settings.

use std::collections::BTreeMap;

/// The profiles of both files. Settings of the second file win.
#[derive(Clone, Default, Eq, PartialEq)]
pub(super) struct Profiles(BTreeMap<String, BTreeMap<String, String>>);

/// Which file a text is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    /// `config`: profiles other than the default one are `[profile NAME]`.
    Config,
    /// `credentials`: they are `[NAME]`.
    Credentials,
}

impl Profiles {
    /// Adds what a file has.
    ///
    /// # Errors
    /// With the number of the first line that cannot be read.
    pub(super) fn add(&mut self, kind: Kind, text: &str) -> Result<(), usize> {
        // Sections that are no profiles, such as `[sso-session NAME]`, are passed over.
        let mut section = None;
        for (number, line) in text.lines().enumerate() {
            let content = line.trim();
            let is_nested = line.starts_with([' ', '\t']);
            if content.is_empty() || content.starts_with(['#', ';']) || is_nested {
                continue;
            }
            if let Some(rest) = content.strip_prefix('[') {
                let (name, _) = rest.split_once(']').ok_or(number + 1)?;
                section = profile_name(kind, name.trim());
                if let Some(name) = &section {
                    self.0.entry(name.clone()).or_default();
                }
                continue;
            }
            let (name, value) = content.split_once('=').ok_or(number + 1)?;
            let Some(profile) = section.as_ref().and_then(|name| self.0.get_mut(name)) else {
                continue;
            };
            let value = without_comment(value).trim().to_owned();
            profile.insert(name.trim().to_ascii_lowercase(), value);
        }
        Ok(())
    }

    /// Tells whether there is a profile of this name.
    pub(super) fn contains(&self, profile: &str) -> bool {
        self.0.contains_key(profile)
    }

    /// Returns a setting that is not blank.
    pub(super) fn setting(&self, profile: &str, name: &str) -> Option<&str> {
        let value = self.0.get(profile)?.get(name)?;
        (!value.is_empty()).then_some(value)
    }
}

impl std::fmt::Debug for Profiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn profile_name(kind: Kind, section: &str) -> Option<String> {
    let name = match (kind, section) {
        (Kind::Credentials, name) | (Kind::Config, name @ "default") => name,
        (Kind::Config, section) => {
            let (word, name) = section.split_once(char::is_whitespace)?;
            if word != "profile" {
                return None;
            }
            name.trim()
        }
    };
    let quoted = name
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    Some(quoted.unwrap_or(name).to_owned())
}

/// A comment within a line has a blank before it: keys may hold such characters.
fn without_comment(value: &str) -> &str {
    let comments = [" #", " ;", "\t#", "\t;"];
    let starts = comments.iter().filter_map(|mark| value.find(mark));
    starts.min().map_or(value, |start| &value[..start])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_read_and_credentials_win() {
        let mut profiles = Profiles::default();
        let config = "# text\n[default]\nregion = eu-west-1 # near\n[profile two]\nREGION=us-east-1\n\
                      aws_access_key_id=old\n[profile \"a b\"]\nregion=x\n[sso-session s]\nregion=no\n\
                      [other]\nregion=no\n";
        profiles.add(Kind::Config, config).unwrap();
        let credentials = "\u{20}\n[two]\naws_access_key_id = new\naws_secret_access_key=a/b+c=#d;e\n  nested = 1\n";
        profiles.add(Kind::Credentials, credentials).unwrap();
        assert_eq!(profiles.setting("default", "region"), Some("eu-west-1"));
        assert_eq!(profiles.setting("two", "region"), Some("us-east-1"));
        assert_eq!(profiles.setting("a b", "region"), Some("x"));
        assert_eq!(profiles.setting("two", "aws_access_key_id"), Some("new"));
        let secret = profiles.setting("two", "aws_secret_access_key");
        assert_eq!(secret, Some("a/b+c=#d;e"));
        assert_eq!(profiles.setting("two", "nested"), None);
        assert!(!profiles.contains("other") && !profiles.contains("s"));
        assert!(!format!("{profiles:?}").contains("a/b"));
    }

    #[test]
    fn the_line_that_cannot_be_read_is_told() {
        let mut profiles = Profiles::default();
        assert_eq!(profiles.add(Kind::Config, "[default]\n\nregion\n"), Err(3));
        assert_eq!(profiles.add(Kind::Config, "[default\n"), Err(1));
    }
}
