//! YAML as a small tree, for files of people that nobody has checked.
//!
//! A tree has a limit of values and of depth, aliases included: a small file cannot become a large tree.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// A value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum YamlValue {
    /// Text; numbers and truth are text that is plain.
    Scalar(YamlScalar),
    /// Values in their order.
    List(Vec<Self>),
    /// Values by their names.
    Map(BTreeMap<String, Self>),
}

/// A single value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct YamlScalar {
    /// What it says.
    pub(super) text: String,
    /// It is neither quoted nor a block.
    pub(super) plain: bool,
}

/// Deepest nesting: the files that are read nest to four.
const MAX_DEPTH: usize = 32;
/// Bytes of text that a tree holds, twice as many as the largest file: aliases repeat little.
const MAX_TEXT_BYTES: usize = 2 << 20;
/// Values of a tree; what a file that is not an attack holds is far from it.
const MAX_VALUES: usize = 65_536;

impl YamlValue {
    /// Reads the one document of a text; `None` if it is not YAML, or too intricate.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut builder = TreeBuilder::default();
        for event in Parser::new_from_str(text) {
            builder.handle(event.ok()?.0)?;
        }
        builder.root
    }

    /// Tells whether it says that nothing is there.
    pub(super) fn is_null(&self) -> bool {
        let nothing = |text: &str| matches!(text, "" | "~" | "null" | "Null" | "NULL");
        matches!(self, Self::Scalar(YamlScalar { text, plain: true }) if nothing(text))
    }

    fn size(&self) -> TreeSize {
        let values: Box<dyn Iterator<Item = &Self>> = match self {
            Self::Scalar(scalar) => return TreeSize::of(&scalar.text),
            Self::List(values) => Box::new(values.iter()),
            Self::Map(values) => Box::new(values.values()),
        };
        let mut all = TreeSize::of("");
        for value in values {
            let one = value.size();
            all.values += one.values;
            all.bytes += one.bytes;
            all.depth = all.depth.max(one.depth + 1);
        }
        all
    }
}

/// What a value takes.
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

/// Puts a tree together from events.
#[derive(Default)]
struct TreeBuilder {
    root: Option<YamlValue>,
    open: Vec<(OpenCollection, usize)>,
    /// What aliases stand for. Each is counted as if it were in the tree once more.
    anchored: BTreeMap<usize, YamlValue>,
    used: TreeSize,
}

/// A list or a map that has not ended yet.
enum OpenCollection {
    List(Vec<YamlValue>),
    Map(BTreeMap<String, YamlValue>, Option<String>),
}

impl TreeBuilder {
    /// Takes one event; `None` ends the reading.
    fn handle(&mut self, event: Event<'_>) -> Option<()> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Some(()),
            // A second document is not what anybody looks for.
            Event::DocumentStart(_) => self.root.is_none().then_some(()),
            Event::Alias(anchor) => {
                // What has not ended cannot hold itself.
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

    /// Takes room in the tree, if there is any left.
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
                    // A name that is given twice means two things.
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
    fn an_alias_stands_for_what_it_names() {
        let parsed = YamlValue::parse("a: &x [1, &y z]\nb: *x\nc: *y\n");
        assert_eq!(parsed, YamlValue::parse("a: [1, z]\nb: [1, z]\nc: z\n"));
        assert!(parsed.is_some());
        assert_eq!(YamlValue::parse("a: &x [*x]\n"), None);
        assert_eq!(YamlValue::parse("a: *x\n"), None);
    }

    #[test]
    fn a_small_file_does_not_become_a_large_tree() {
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
    fn what_is_nested_too_deep_is_refused() {
        let nested = |depth: usize| format!("{}x{}", "[".repeat(depth), "]".repeat(depth));
        assert!(YamlValue::parse(&nested(MAX_DEPTH)).is_some());
        assert_eq!(YamlValue::parse(&nested(MAX_DEPTH + 1)), None);
        assert_eq!(YamlValue::parse(&nested(100_000)), None);
    }

    #[test]
    fn a_name_that_is_given_twice_is_refused() {
        assert_eq!(YamlValue::parse("a: 1\na: 2\n"), None);
    }

    #[test]
    fn one_document_is_read() {
        assert_eq!(YamlValue::parse("x"), Some(scalar("x")));
        assert_eq!(YamlValue::parse("x\n---\ny\n"), None);
        assert_eq!(YamlValue::parse(""), None);
    }
}
