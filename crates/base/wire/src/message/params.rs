//! Decoding of `params` into a method's own type, with errors that name the member.

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// Decodes the parameters of a method. Absent is `null`; `{}` that does not decode is tried as
/// `null`, so that methods without parameters accept all three.
pub fn decode_params<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, ParamsError> {
    let text = params.map_or("null", RawValue::get);
    if let Ok(value) = serde_json::from_str(text) {
        return Ok(value);
    }
    if is_empty_object(text)
        && let Ok(value) = serde_json::from_str("null")
    {
        return Ok(value);
    }
    Err(explain::<T>(text))
}

/// Caller: the parameters do not decode. Says which member, and what was expected.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct ParamsError(pub String);

/// Members whose errors read as those of the stock server, which does not name them: its clients
/// compare the text.
const AS_STOCK: [&str; 1] = ["timeoutMs"];

fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'))
        .is_some_and(|inside| inside.bytes().all(|byte| byte.is_ascii_whitespace()))
}

/// Decodes once more, keeping track of the path: only failures pay for it.
fn explain<T: DeserializeOwned>(text: &str) -> ParamsError {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => ParamsError("params do not decode".to_owned()),
        Err(error) => {
            let path = error.path().to_string();
            let reason = error.inner().to_string();
            // Positions inside the params mean nothing to a caller who wrote a whole message.
            let reason = reason
                .rsplit_once(" at line ")
                .map_or(&*reason, |(text, _)| text);
            let named = path == "."
                || AS_STOCK.contains(&path.as_str())
                || reason.contains(&format!("`{path}`"));
            ParamsError(if named {
                reason.to_owned()
            } else {
                format!("{path}: {reason}")
            })
        }
    }
}
