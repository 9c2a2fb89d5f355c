//! Reading what must be an object.

use serde::de::{DeserializeOwned, Error};

/// Reads a JSON object. A list is refused, though its members might be in the right order.
///
/// # Errors
/// When it is none, or not the one that is expected.
pub fn read_object<T: DeserializeOwned>(json: &[u8]) -> Result<T, serde_json::Error> {
    let begins = json.iter().find(|byte| !byte.is_ascii_whitespace());
    if begins.is_some_and(|byte| *byte != b'{') {
        return Err(serde_json::Error::custom("it is not an object"));
    }
    serde_json::from_slice(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Validated;

    #[test]
    fn a_list_is_no_object() {
        assert!(
            read_object::<Validated>(br#" {"valid":true}"#)
                .unwrap()
                .valid
        );
        for json in ["[true]", "true", "", " ", "{}", "{\"valid\":true} x"] {
            assert!(read_object::<Validated>(json.as_bytes()).is_err(), "{json}");
        }
    }
}
