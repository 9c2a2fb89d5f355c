//! TOML values as the text that options are read from.

use toml::de::DeValue;

/// Gives a plain value as text, numbers in decimal.
pub(super) fn text_of(value: &DeValue<'_>) -> Result<String, NotPlain> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|_| NotPlain),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(switch) => Ok(switch.to_string()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => Err(NotPlain),
    }
}

/// Caller: the value is a date, an array or a table, which no option takes, or beyond 64 bits.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("expected a string, a number, true or false")]
pub(super) struct NotPlain;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_have_a_text() {
        let values = [
            ("\"a b\"", Some("a b")),
            ("'a'", Some("a")),
            ("1_048_576", Some("1048576")),
            ("0x10", Some("16")),
            ("-3", Some("-3")),
            ("0.5", Some("0.5")),
            ("1_000.5", Some("1000.5")),
            ("true", Some("true")),
            ("99999999999999999999", None),
            ("2000-01-01", None),
            ("[1]", None),
            ("{ a = 1 }", None),
        ];
        for (toml, text) in values {
            let value = DeValue::parse(toml).unwrap();
            assert_eq!(text_of(value.get_ref()).ok().as_deref(), text, "{toml}");
        }
    }
}
