//! YAML parser for untrusted files.
//!
//! The number of values, the text size and the depth are limited, including expanded aliases, so
//! that a small file cannot become a large tree.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// A YAML value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum YamlValue {
    /// Text. Numbers and booleans are plain text.
    Scalar(YamlScalar),
    /// A sequence.
    List(Vec<Self>),
    /// A mapping.
    Map(BTreeMap<String, Self>),
}

/// A scalar.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct YamlScalar {
    /// Text of the scalar.
    pub text: String,
    /// Neither quoted nor a block scalar.
    pub plain: bool,
}

/// Maximum depth. Valid files nest four levels.
const MAX_DEPTH: usize = 32;
/// Maximum text of a tree: twice the largest file, because legitimate aliases repeat little.
const MAX_TEXT_BYTES: usize = 2 << 20;
/// Maximum number of values, far above legitimate files.
const MAX_VALUES: usize = 65_536;

impl YamlValue {
    /// Parses a text with a single document. Returns `None` if it is invalid or exceeds a limit.
    pub fn parse(text: &str) -> Option<Self> {
        let mut builder = TreeBuilder::default();
        for event in Parser::new_from_str(text) {
            builder.handle(event.ok()?.0)?;
        }
        builder.root
    }

    /// Returns whether the value is null.
    pub fn is_null(&self) -> bool {
        let is_null_text = |text: &str| matches!(text, "" | "~" | "null" | "Null" | "NULL");
        matches!(self, Self::Scalar(YamlScalar { text, plain: true }) if is_null_text(text))
    }

    fn size(&self) -> TreeSize {
        let values: Box<dyn Iterator<Item = &Self>> = match self {
            Self::Scalar(scalar) => return TreeSize::of(&scalar.text),
            Self::List(values) => Box::new(values.iter()),
            Self::Map(values) => Box::new(values.values()),
        };
        let mut all = TreeSize::of("");
        for value in values {
            let child = value.size();
            all.values += child.values;
            all.bytes += child.bytes;
            all.depth = all.depth.max(child.depth + 1);
        }
        all
    }
}

/// Size of a tree.
#[derive(Clone, Copy, Debug, Default)]
struct TreeSize {
    values: usize,
    bytes: usize,
    depth: usize,
}

impl TreeSize {
    fn of(text: &str) -> Self {
        Self {
            values: 1,
            bytes: text.len(),
            depth: 0,
        }
    }
}

/// Builds a tree from parser events.
#[derive(Default)]
struct TreeBuilder {
    root: Option<YamlValue>,
    open: Vec<(OpenCollection, usize)>,
    /// Anchored values. Each counts once more towards the limits.
    anchored: BTreeMap<usize, YamlValue>,
    used: TreeSize,
}

/// A collection that is still open.
enum OpenCollection {
    List(Vec<YamlValue>),
    Map(BTreeMap<String, YamlValue>, Option<String>),
}

impl TreeBuilder {
    /// Handles one event. Returns `None` to abort.
    fn handle(&mut self, event: Event<'_>) -> Option<()> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Some(()),
            // Reject a second document.
            Event::DocumentStart(_) => self.root.is_none().then_some(()),
            Event::Alias(anchor) => {
                // An open collection cannot contain an alias to itself.
                let size = self.anchored.get(&anchor)?.size();
                self.reserve(size)?;
                let value = self.anchored.get(&anchor)?.clone();
                self.add(value)
            }
            Event::Scalar(text, style, anchor, _) => {
                self.reserve(TreeSize::of(&text))?;
                let scalar = YamlScalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                };
                self.end(YamlValue::Scalar(scalar), anchor)
            }
            Event::SequenceStart(anchor, _) => self.open(OpenCollection::List(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => {
                self.open(OpenCollection::Map(BTreeMap::new(), None), anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let (ended, anchor) = self.open.pop()?;
                let ended = match ended {
                    OpenCollection::List(values) => YamlValue::List(values),
                    OpenCollection::Map(values, _) => YamlValue::Map(values),
                };
                self.end(ended, anchor)
            }
        }
    }

    /// Reserves size in the tree, if the limits allow it.
    fn reserve(&mut self, size: TreeSize) -> Option<()> {
        self.used.values += size.values;
        self.used.bytes += size.bytes;
        let fits = self.used.values <= MAX_VALUES
            && self.used.bytes <= MAX_TEXT_BYTES
            && self.open.len() + size.depth <= MAX_DEPTH;
        fits.then_some(())
    }

    fn open(&mut self, open: OpenCollection, anchor: usize) -> Option<()> {
        self.open.push((open, anchor));
        self.reserve(TreeSize::of(""))
    }

    fn end(&mut self, value: YamlValue, anchor: usize) -> Option<()> {
        if anchor > 0 {
            self.reserve(value.size())?;
            self.anchored.insert(anchor, value.clone());
        }
        self.add(value)
    }

    fn add(&mut self, value: YamlValue) -> Option<()> {
        match self.open.last_mut().map(|(open, _)| open) {
            None => self.root = Some(value),
            Some(OpenCollection::List(values)) => values.push(value),
            Some(OpenCollection::Map(values, name)) => match (name.take(), value) {
                (Some(name), value) => {
                    // Reject duplicate keys.
                    if values.insert(name, value).is_some() {
                        return None;
                    }
                }
                (None, YamlValue::Scalar(scalar)) => *name = Some(scalar.text),
                (None, YamlValue::List(_) | YamlValue::Map(_)) => return None,
            },
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(text: &str) -> YamlValue {
        YamlValue::Scalar(YamlScalar {
            text: text.to_owned(),
            plain: true,
        })
    }

    #[test]
    fn alias_expands_to_its_anchor() {
        let parsed = YamlValue::parse("a: &x [1, &y z]\nb: *x\nc: *y\n");
        assert_eq!(parsed, YamlValue::parse("a: [1, z]\nb: [1, z]\nc: z\n"));
        assert!(parsed.is_some());
        assert_eq!(YamlValue::parse("a: &x [*x]\n"), None);
        assert_eq!(YamlValue::parse("a: *x\n"), None);
    }

    #[test]
    fn alias_expansion_is_limited() {
        let mut wide = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        let mut deep = "a0: &a0 [x]\n".to_owned();
        let mut long = format!("a: &a {}\nb:\n", "x".repeat(1 << 19));
        for level in 1..40 {
            let below = format!("*a{}, ", level - 1).repeat(10);
            wide += &format!("a{level}: &a{level} [{below}]\n");
            deep += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
            long += "  - *a\n";
        }
        for bomb in [wide, deep, long] {
            assert_eq!(YamlValue::parse(&bomb), None);
        }
    }

    #[test]
    fn nesting_beyond_the_limit_is_rejected() {
        let nested = |depth: usize| format!("{}x{}", "[".repeat(depth), "]".repeat(depth));
        assert!(YamlValue::parse(&nested(MAX_DEPTH)).is_some());
        assert_eq!(YamlValue::parse(&nested(MAX_DEPTH + 1)), None);
        assert_eq!(YamlValue::parse(&nested(100_000)), None);
    }

    #[test]
    fn duplicate_key_is_rejected() {
        assert_eq!(YamlValue::parse("a: 1\na: 2\n"), None);
    }

    #[test]
    fn only_one_document_is_accepted() {
        assert_eq!(YamlValue::parse("x"), Some(scalar("x")));
        assert_eq!(YamlValue::parse("x\n---\ny\n"), None);
        assert_eq!(YamlValue::parse(""), None);
    }
}
