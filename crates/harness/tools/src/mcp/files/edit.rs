//! `edit_file`.

use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Deserialize;

use super::text::{MAX_TEXT_BYTES, read_text, write_text};
use crate::mcp::{
    answer::{Answer, Complaint},
    tool::{Effect, Tool},
    work::Work,
};

/// Places that a complaint names.
const NAMED_PLACES: usize = 10;

/// The arguments of `edit_file`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::mcp) struct EditFile {
    /// File to change: absolute, or relative to the workspace.
    path: String,
    /// Text to replace, exactly as it is in the file, blanks included; "\n" also stands for the line ends
    /// of a file that has "\r\n".
    old: String,
    /// Text to put in its place.
    new: String,
    /// Replaces every occurrence. Without it there must be exactly one.
    #[serde(default)]
    replace_all: bool,
}

impl Tool for EditFile {
    const NAME: &'static str = "edit_file";
    const TITLE: &'static str = "Edit a file";
    const DESCRIPTION: &'static str = "Replaces an exact string in a text file. The string must occur \
        exactly once (add lines around it until it does), unless replace_all is set. Read the file first.";
    const EFFECT: Effect = Effect::Edits;

    async fn call(self, work: &Work) -> Result<Answer, Complaint> {
        let path = work.file(&self.path)?;
        let shown = work.show(&path);
        if self.old.is_empty() {
            return Err(Complaint::new("`old` must not be empty"));
        }
        if self.old == self.new {
            return Err(Complaint::new("`old` and `new` are the same"));
        }
        let turn = work.editing().await;
        let text = read_text(work, &path).await?;
        let (old, new) = in_its_line_ends(&text, &self.old, &self.new);
        let places: Vec<usize> = text.match_indices(&*old).map(|(at, _)| at).collect();
        match (places.len(), self.replace_all) {
            (0, _) => return Err(Complaint(format!("`old` does not occur in `{shown}`"))),
            (1, _) | (_, true) => {}
            (count, false) => {
                let lines = places.iter().take(NAMED_PLACES);
                let lines: Vec<String> = lines.map(|at| line_of(&text, *at).to_string()).collect();
                let lines = lines.join(", ");
                return Err(Complaint(format!(
                    "`old` occurs {count} times in `{shown}`, at lines {lines}{}: add lines around it, or \
                     set replace_all",
                    if count > NAMED_PLACES { ", …" } else { "" }
                )));
            }
        }
        let count = places.len();
        let rest = text.len() - count * old.len();
        let size = new.len().saturating_mul(count).saturating_add(rest);
        if size as u64 > MAX_TEXT_BYTES {
            return Err(Complaint(format!(
                "`{shown}` would become too large: {size} bytes, at most {MAX_TEXT_BYTES}"
            )));
        }
        write_text(work, &path, text.replace(&*old, &new), turn).await?;
        let line = line_of(&text, places[0]);
        Ok(Answer::text(match count {
            1 => format!("Edited {shown} at line {line}"),
            _ => format!("Edited {shown} in {count} places, the first at line {line}"),
        }))
    }
}

/// What to replace by what in a file whose lines end with CR LF, for those who write LF. Whoever writes a CR
/// means what is written.
fn in_its_line_ends<'a>(text: &str, old: &'a str, new: &'a str) -> (Cow<'a, str>, Cow<'a, str>) {
    let first = text.find('\n').map(|end| &text[..end]);
    let is_crlf = first.is_some_and(|line| line.ends_with('\r'));
    if !is_crlf || old.contains('\r') || new.contains('\r') {
        return (Cow::Borrowed(old), Cow::Borrowed(new));
    }
    // Lines with another end than the first one are found as they are.
    let with_cr = old.replace('\n', "\r\n");
    let old = match text.contains(&with_cr) {
        true => Cow::Owned(with_cr),
        false => Cow::Borrowed(old),
    };
    (old, Cow::Owned(new.replace('\n', "\r\n")))
}

/// The line of a byte, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}
