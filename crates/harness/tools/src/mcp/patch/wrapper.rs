//! What agents wrap a patch in: the fence of a code block, and the lines of a shell that would feed it to a
//! command.

/// The wrappers that were opened, the last one behind the others.
#[derive(Debug, Default)]
pub(super) struct Wrappers<'a> {
    ends: Vec<&'a str>,
}

/// Wrappers in each other: a fence around a shell's line is all that occurs.
const MOST: usize = 2;
const FENCE: &str = "```";

impl<'a> Wrappers<'a> {
    /// Takes a line before the patch. Says whether it is blank or opens a wrapper.
    pub(super) fn open(&mut self, line: &'a str) -> bool {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        let end = if line.starts_with(FENCE) {
            Some(FENCE)
        } else {
            delimiter(line)
        };
        match end {
            Some(end) if self.ends.len() < MOST => {
                self.ends.push(end);
                true
            }
            Some(_) | None => false,
        }
    }

    /// Takes a line behind the patch. Says whether it is blank or closes the wrapper that was opened last.
    pub(super) fn close(&mut self, line: &str) -> bool {
        let line = line.trim();
        if line.is_empty() {
            return true;
        }
        let closes = self.ends.last() == Some(&line);
        if closes {
            self.ends.pop();
        }
        closes
    }
}

/// The word that ends what a shell is given from here on: of `<<'EOF'`, with or without a command.
fn delimiter(line: &str) -> Option<&str> {
    let (command, word) = line.split_once("<<")?;
    if !matches!(command.trim(), "" | "apply_patch" | "applypatch") {
        return None;
    }
    let word = word.trim_start_matches('-').trim();
    let quoted = ['\'', '"'].into_iter().find_map(|quote| {
        let inner = word.strip_prefix(quote)?;
        inner.strip_suffix(quote)
    });
    let word = quoted.unwrap_or(word);
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!word.is_empty() && word.bytes().all(is_word)).then_some(word)
}
