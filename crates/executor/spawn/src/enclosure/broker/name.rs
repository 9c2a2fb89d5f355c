//! When two names might be the same one to a file system.

/// Whether some file system might take `name` for `guarded`.
///
/// Always asked without regard to case: whether a directory folds names (ext4 and f2fs can, per
/// directory) is not worth a system call per file, and a name that differs from a guarded one by
/// case only is not missed. Such directories also fold letters beyond ASCII to ASCII ones, and skip
/// characters that are not seen; others drop dots and spaces at the end. Composed and decomposed
/// forms of a letter are not taken for the same: guarded names are ASCII in practice.
pub(super) fn may_be_same(name: &[u8], guarded: &[u8]) -> bool {
    if name == guarded {
        return true;
    }
    match (std::str::from_utf8(name), std::str::from_utf8(guarded)) {
        (Ok(name), Ok(guarded)) => folded(name).eq(folded(guarded)),
        // What is not text is not folded beyond ASCII by anybody.
        _ => name.eq_ignore_ascii_case(guarded),
    }
}

/// Whether it names no entry of its own: the directory itself, or the one above.
pub(super) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

fn folded(name: &str) -> impl Iterator<Item = char> {
    name.trim_end_matches(['.', ' '])
        .chars()
        .filter(|letter| !is_ignored(*letter))
        // Up and down again: some letters meet others in one of the cases only.
        .flat_map(char::to_lowercase)
        .flat_map(char::to_uppercase)
        .flat_map(char::to_lowercase)
}

/// Unicode's `Default_Ignorable_Code_Point`.
const fn is_ignored(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::may_be_same;

    #[test]
    fn names_that_a_file_system_may_fold_are_the_same() {
        for name in [
            ".git",
            ".GIT",
            ".gIt",
            ".g\u{200c}it",
            "\u{feff}.git",
            ".git. .",
        ] {
            assert!(may_be_same(name.as_bytes(), b".git"), "{name:?}");
        }
        assert!(may_be_same(".agent\u{17f}".as_bytes(), b".agents"));
        assert!(may_be_same("\u{212a}eep".as_bytes(), b"keep"));
        assert!(may_be_same("gla\u{df}".as_bytes(), b"GLASS"));
        assert!(may_be_same(b"\xff.git", b"\xff.GIT"));
    }

    #[test]
    fn other_names_are_not_the_same() {
        for name in [
            ".gitignore",
            "git",
            ".gi",
            ".git2",
            "..git",
            "\u{65e5}\u{672c}",
            ".",
        ] {
            assert!(!may_be_same(name.as_bytes(), b".git"), "{name:?}");
        }
        assert!(!may_be_same(b".git\xff", b".git"));
    }
}
