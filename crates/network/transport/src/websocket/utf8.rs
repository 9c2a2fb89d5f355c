//! Validation of UTF-8 that arrives in pieces (RFC 6455 section 8.1).

/// Checks a text that arrives in pieces. Every call costs what [`str::from_utf8`] costs for the new
/// piece: nothing is looked at twice, and ASCII takes its fast path.
#[derive(Debug, Default)]
pub(super) struct Utf8Validator {
    /// The start of a character whose end has not arrived.
    partial: [u8; 4],
    partial_len: usize,
}

/// The text cannot become valid UTF-8, whatever follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct InvalidUtf8;

impl Utf8Validator {
    /// Checks the next piece.
    pub(super) fn push(&mut self, mut piece: &[u8]) -> Result<(), InvalidUtf8> {
        while self.partial_len > 0 {
            let Some((first, rest)) = piece.split_first() else {
                return Ok(());
            };
            piece = rest;
            self.partial[self.partial_len] = *first;
            self.partial_len += 1;
            match str::from_utf8(&self.partial[..self.partial_len]) {
                Ok(_) => self.partial_len = 0,
                // Still the start of a character: at most three bytes are.
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return Err(InvalidUtf8),
            }
        }
        let Err(error) = str::from_utf8(piece) else {
            return Ok(());
        };
        if error.error_len().is_some() {
            return Err(InvalidUtf8);
        }
        let rest = &piece[error.valid_up_to()..];
        self.partial_len = rest.len();
        self.partial[..rest.len()].copy_from_slice(rest);
        Ok(())
    }

    /// Checks that the text does not end inside a character, and starts over.
    pub(super) fn finish(&mut self) -> Result<(), InvalidUtf8> {
        match std::mem::take(&mut self.partial_len) {
            0 => Ok(()),
            _ => Err(InvalidUtf8),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn validate(pieces: &[&[u8]]) -> Result<(), InvalidUtf8> {
        let mut validator = Utf8Validator::default();
        for piece in pieces {
            validator.push(piece)?;
        }
        validator.finish()
    }

    proptest! {
        #[test]
        fn pieces_are_judged_as_the_whole_text(
            text in prop_oneof![
                any::<Vec<u8>>(),
                any::<String>().prop_map(String::into_bytes),
                (any::<String>(), any::<u8>(), any::<String>())
                    .prop_map(|(a, b, c)| [a.as_bytes(), &[b], c.as_bytes()].concat()),
            ],
            size in 1usize..9,
        ) {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            prop_assert_eq!(validate(&pieces).is_ok(), str::from_utf8(&text).is_ok());
        }

        #[test]
        fn invalid_text_is_refused_with_its_first_wrong_byte(
            start in any::<String>(),
            wrong in any::<Vec<u8>>(),
        ) {
            let text = [start.as_bytes(), &wrong].concat();
            let mut validator = Utf8Validator::default();
            for end in 1..=text.len() {
                let could_go_on = match str::from_utf8(&text[..end]) {
                    Ok(_) => true,
                    Err(error) => error.error_len().is_none(),
                };
                prop_assert_eq!(validator.push(&text[end - 1..end]).is_ok(), could_go_on);
                if !could_go_on {
                    break;
                }
            }
        }
    }
}
