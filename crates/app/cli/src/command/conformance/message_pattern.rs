//! Patterns of messages: which values an implementation may send.
//!
//! A pattern is JSON. An object matches if each of its members does, whatever else the message has;
//! `null` also matches an absent member; arrays match item by item; other values match themselves.
//! An object with members that start with `$` is a list of checks, all of which must pass.

use std::collections::BTreeMap;

use exec_wire::base64_bytes;
use serde_json::Value;

/// Values that earlier messages of a case contained, by name.
pub(super) type SavedValues = BTreeMap<String, Value>;

/// Why a value does not match a pattern.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{path}: expected {expected}, got {found}")]
pub(super) struct PatternMismatch {
    /// Member, as a path from the root.
    pub(super) path: String,
    pub(super) expected: String,
    pub(super) found: String,
}

/// Checks a value, and saves the parts that the pattern names.
pub(super) fn check(
    pattern: &Value,
    value: Option<&Value>,
    path: &str,
    saved: &mut SavedValues,
) -> Result<(), PatternMismatch> {
    let mismatch = |expected: String| PatternMismatch {
        path: path.to_owned(),
        expected,
        found: value.map_or_else(|| "nothing".to_owned(), shortened),
    };
    match (pattern, value) {
        (Value::Object(checks), _) if checks.keys().any(|name| name.starts_with('$')) => {
            for (name, operand) in checks {
                check_one(name, operand, value, path, saved)?
                    .then_some(())
                    .ok_or_else(|| mismatch(shortened(pattern)))?;
            }
            Ok(())
        }
        (Value::Object(members), Some(Value::Object(found))) => {
            for (name, pattern) in members {
                check(pattern, found.get(name), &format!("{path}.{name}"), saved)?;
            }
            Ok(())
        }
        (Value::Array(patterns), Some(Value::Array(items))) if patterns.len() == items.len() => {
            for (index, (pattern, item)) in patterns.iter().zip(items).enumerate() {
                check(pattern, Some(item), &format!("{path}[{index}]"), saved)?;
            }
            Ok(())
        }
        (Value::Null, None) => Ok(()),
        (pattern, Some(found)) if pattern == found => Ok(()),
        _ => Err(mismatch(shortened(pattern))),
    }
}

/// Runs one named check. `Err` is a mismatch below this value.
fn check_one(
    name: &str,
    operand: &Value,
    value: Option<&Value>,
    path: &str,
    saved: &mut SavedValues,
) -> Result<bool, PatternMismatch> {
    if name == "$absent" {
        return Ok(value.is_none());
    }
    let Some(value) = value else {
        return Ok(false);
    };
    Ok(match (name, operand) {
        ("$save", Value::String(name)) => {
            saved.insert(name.clone(), value.clone());
            true
        }
        ("$type", Value::String(kind)) => kind_of(value) == kind,
        ("$min", Value::Number(least)) => value.as_f64() >= least.as_f64(),
        ("$max", Value::Number(most)) => value
            .as_f64()
            .is_some_and(|found| Some(found) <= most.as_f64()),
        ("$includes", Value::String(part)) => value
            .as_str()
            .is_some_and(|text| text.contains(part.as_str())),
        ("$contains", Value::Array(patterns)) => {
            let Some(items) = value.as_array() else {
                return Ok(false);
            };
            for pattern in patterns {
                let found = items
                    .iter()
                    .any(|item| check(pattern, Some(item), path, saved).is_ok());
                if !found {
                    return Ok(false);
                }
            }
            true
        }
        ("$anyOf", Value::Array(patterns)) => patterns
            .iter()
            .any(|pattern| check(pattern, Some(value), path, saved).is_ok()),
        ("$not", pattern) => check(pattern, Some(value), path, saved).is_err(),
        ("$base64", Value::String(text)) => value
            .as_str()
            .and_then(|encoded| base64_bytes::decode(encoded.as_bytes()).ok())
            .is_some_and(|bytes| bytes == text.as_bytes()),
        ("$length", Value::Number(length)) => {
            let found = match value {
                Value::Array(items) => items.len(),
                Value::String(text) => text.len(),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                    return Ok(false);
                }
            };
            length.as_u64() == u64::try_from(found).ok()
        }
        _ => false,
    })
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the value as text of limited length.
pub(super) fn shortened(value: &Value) -> String {
    const MAX_CHARACTERS: usize = 200;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARACTERS) {
        None => text,
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// Replaces `${name}` by saved values, and `{"$encode": TEXT}` by its base64, in a value to send.
///
/// # Errors
/// Returns the name that is not saved.
pub(super) fn substitute(value: &Value, saved: &SavedValues) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) => substitute_text(text, saved)?,
        Value::Array(items) => {
            let items = items.iter().map(|item| substitute(item, saved));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(members) => {
            if let Some(text) = members.get("$encode").and_then(Value::as_str) {
                let mut encoded = Vec::new();
                base64_bytes::encode_append(text.as_bytes(), &mut encoded);
                return Ok(Value::String(
                    String::from_utf8_lossy(&encoded).into_owned(),
                ));
            }
            let members = members.iter().map(|(name, member)| {
                substitute(member, saved).map(|member| (name.clone(), member))
            });
            Value::Object(members.collect::<Result<_, _>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

/// Returns a text as it is, and another value as JSON.
pub(super) fn into_text(value: Value) -> String {
    if let Value::String(text) = value {
        return text;
    }
    value.to_string()
}

fn substitute_text(text: &str, saved: &SavedValues) -> Result<Value, String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, after)) = after.split_once('}') else {
            break;
        };
        let value = saved.get(name).ok_or_else(|| name.to_owned())?;
        if before.is_empty() && after.is_empty() && result.is_empty() {
            return Ok(value.clone());
        }
        result.push_str(before);
        result.push_str(&into_text(value.clone()));
        rest = after;
    }
    result.push_str(rest);
    Ok(Value::String(result))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verdict(pattern: &Value, value: &Value) -> Result<(), String> {
        let checked = check(pattern, Some(value), "m", &mut SavedValues::new());
        checked.map_err(|mismatch| mismatch.to_string())
    }

    #[test]
    fn object_pattern_ignores_other_members_and_names_the_one_that_differs() {
        let value = json!({ "a": { "b": [1, "x"] }, "c": null });
        assert_eq!(verdict(&json!({ "a": { "b": [1, "x"] } }), &value), Ok(()));
        assert_eq!(verdict(&json!({ "c": null, "d": null }), &value), Ok(()));
        assert_eq!(
            verdict(&json!({ "a": { "b": [1, "y"] } }), &value),
            Err(r#"m.a.b[1]: expected "y", got "x""#.to_owned())
        );
        assert_eq!(
            verdict(&json!({ "e": 1 }), &value),
            Err("m.e: expected 1, got nothing".to_owned())
        );
        assert!(verdict(&json!({ "a": { "b": [1] } }), &value).is_err());
    }

    #[test]
    fn each_check_accepts_and_refuses() {
        for (pattern, accepted, refused) in [
            (json!({ "$type": "integer" }), json!(1), json!(1.5)),
            (json!({ "$type": "string" }), json!(""), json!(null)),
            (json!({ "$min": 2, "$max": 3 }), json!(3), json!(4)),
            (json!({ "$min": 2 }), json!(2), json!("2")),
            (json!({ "$includes": "b" }), json!("abc"), json!("ac")),
            (
                json!({ "$contains": [1, { "a": 2 }] }),
                json!([{ "a": 2 }, 1]),
                json!([1]),
            ),
            (json!({ "$anyOf": [1, 2] }), json!(2), json!(3)),
            (json!({ "$not": 1 }), json!(2), json!(1)),
            (json!({ "$base64": "a" }), json!("YQ=="), json!("YQ")),
            (json!({ "$length": 2 }), json!([0, 0]), json!([0])),
            (
                json!({ "a": { "$absent": true } }),
                json!({}),
                json!({ "a": null }),
            ),
        ] {
            assert_eq!(verdict(&pattern, &accepted), Ok(()), "{pattern}");
            assert!(verdict(&pattern, &refused).is_err(), "{pattern}");
        }
        assert!(verdict(&json!({ "$unknown": 1 }), &json!(1)).is_err());
    }

    #[test]
    fn saved_values_are_substituted() {
        let mut saved = SavedValues::new();
        let pattern = json!({ "id": { "$save": "id", "$type": "integer" } });
        check(&pattern, Some(&json!({ "id": 7 })), "m", &mut saved).unwrap();
        let value = json!({ "a": "${id}", "b": ["x${id}y"], "c": { "$encode": "a" } });
        let expected = json!({ "a": 7, "b": ["x7y"], "c": "YQ==" });
        assert_eq!(substitute(&value, &saved), Ok(expected));
        assert_eq!(substitute(&json!("${no}"), &saved), Err("no".to_owned()));
    }
}
