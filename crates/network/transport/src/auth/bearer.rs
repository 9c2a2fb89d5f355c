//! The `Authorization: Bearer <token>` header (RFC 6750 section 2.1).

use super::AuthRejection;

/// Takes the token out of the header: scheme in any case, one space, blanks around it trimmed.
pub(super) fn token(authorization: Option<&[u8]>) -> Result<&str, AuthRejection> {
    let value = authorization.ok_or(AuthRejection::MissingToken)?;
    let value = str::from_utf8(value).map_err(|_| AuthRejection::InvalidHeader)?;
    let (scheme, token) = value.split_once(' ').ok_or(AuthRejection::InvalidHeader)?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return Err(AuthRejection::InvalidHeader);
    }
    Ok(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scheme_is_case_insensitive_and_blanks_are_trimmed() {
        let accepted = [
            "Bearer t0k",
            "bearer t0k",
            "BEARER t0k",
            "Bearer   t0k",
            "Bearer \tt0k \t",
            "bEaReR t0k ",
        ];
        for header in accepted {
            assert_eq!(token(Some(header.as_bytes())), Ok("t0k"), "{header:?}");
        }
    }

    #[test]
    fn other_shapes_are_an_invalid_header() {
        let refused: [&[u8]; 10] = [
            b"",
            b"Bearer",
            b"Bearer ",
            b"Bearer  \t ",
            b"Bearer\tt0k",
            b" Bearer t0k",
            b"Basic dTpw",
            b"Bearert0k",
            b"t0k",
            b"Bearer \xff\xfe",
        ];
        for header in refused {
            assert_eq!(
                token(Some(header)),
                Err(AuthRejection::InvalidHeader),
                "{header:?}"
            );
        }
    }

    #[test]
    fn no_header_is_a_missing_token() {
        assert_eq!(token(None), Err(AuthRejection::MissingToken));
    }
}
