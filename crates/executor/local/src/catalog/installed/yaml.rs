//! YAML as a small tree, for files of people that nobody has checked.
//!
//! A tree has a limit of values and of depth, aliases included: a small file cannot become a large tree.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// A value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Yaml {
    /// Text; numbers and truth are text that is plain.
    Scalar(Scalar),
    /// Values in their order.
    List(Vec<Self>),
    /// Values by their names.
    Map(BTreeMap<String, Self>),
}

/// A single value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Scalar {
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

impl Yaml {
    /// Reads the one document of a text; `None` if it is not YAML, or too intricate.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut builder = Builder::default();
        for event in Parser::new_from_str(text) {
            builder.handle(event.ok()?.0)?;
        }
        builder.root
    }

    /// Tells whether it says that nothing is there.
    pub(super) fn is_null(&self) -> bool {
        let nothing = |text: &str| matches!(text, "" | "~" | "null" | "Null" | "NULL");
        matches!(self, Self::Scalar(Scalar { text, plain: true }) if nothing(text))
    }

    fn weight(&self) -> Weight {
        let values: Box<dyn Iterator<Item = &Self>> = match self {
            Self::Scalar(scalar) => return Weight::of(&scalar.text),
            Self::List(values) => Box::new(values.iter()),
            Self::Map(values) => Box::new(values.values()),
        };
        let mut all = Weight::of("");
        for value in values {
            let one = value.weight();
            all.values += one.values;
            all.bytes += one.bytes;
            all.depth = all.depth.max(one.depth + 1);
        }
        all
    }
}

/// What a value takes.
#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    values: usize,
    bytes: usize,
    depth: usize,
}

impl Weight {
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
struct Builder {
    root: Option<Yaml>,
    open: Vec<(Open, usize)>,
    /// What aliases stand for. Each is counted as if it were in the tree once more.
    anchored: BTreeMap<usize, Yaml>,
    taken: Weight,
}

/// A list or a map that has not ended yet.
enum Open {
    List(Vec<Yaml>),
    Map(BTreeMap<String, Yaml>, Option<String>),
}

impl Builder {
    /// Takes one event; `None` ends the reading.
    fn handle(&mut self, event: Event<'_>) -> Option<()> {
        match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Some(()),
            // A second document is not what anybody looks for.
            Event::DocumentStart(_) => self.root.is_none().then_some(()),
            Event::Alias(anchor) => {
                // What has not ended cannot hold itself.
                let weight = self.anchored.get(&anchor)?.weight();
                self.take(weight)?;
                let value = self.anchored.get(&anchor)?.clone();
                self.add(value)
            }
            Event::Scalar(text, style, anchor, _) => {
                self.take(Weight::of(&text))?;
                let scalar = Scalar {
                    text: text.into_owned(),
                    plain: style == ScalarStyle::Plain,
                };
                self.end(Yaml::Scalar(scalar), anchor)
            }
            Event::SequenceStart(anchor, _) => self.open(Open::List(Vec::new()), anchor),
            Event::MappingStart(anchor, _) => self.open(Open::Map(BTreeMap::new(), None), anchor),
            Event::SequenceEnd | Event::MappingEnd => {
                let (ended, anchor) = self.open.pop()?;
                let ended = match ended {
                    Open::List(values) => Yaml::List(values),
                    Open::Map(values, _) => Yaml::Map(values),
                };
                self.end(ended, anchor)
            }
        }
    }

    /// Takes room in the tree, if there is any left.
    fn take(&mut self, weight: Weight) -> Option<()> {
        self.taken.values += weight.values;
        self.taken.bytes += weight.bytes;
        let fits = self.taken.values <= MAX_VALUES
            && self.taken.bytes <= MAX_TEXT_BYTES
            && self.open.len() + weight.depth <= MAX_DEPTH;
        fits.then_some(())
    }

    fn open(&mut self, open: Open, anchor: usize) -> Option<()> {
        self.open.push((open, anchor));
        self.take(Weight::of(""))
    }

    fn end(&mut self, value: Yaml, anchor: usize) -> Option<()> {
        if anchor > 0 {
            self.take(value.weight())?;
            self.anchored.insert(anchor, value.clone());
        }
        self.add(value)
    }

    fn add(&mut self, value: Yaml) -> Option<()> {
        match self.open.last_mut().map(|(open, _)| open) {
            None => self.root = Some(value),
            Some(Open::List(values)) => values.push(value),
            Some(Open::Map(values, name)) => match (name.take(), value) {
                (Some(name), value) => {
                    // A name that is given twice means two things.
                    if values.insert(name, value).is_some() {
                        return None;
                    }
                }
                (None, Yaml::Scalar(scalar)) => *name = Some(scalar.text),
                (None, Yaml::List(_) | Yaml::Map(_)) => return None,
            },
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(text: &str) -> Yaml {
        Yaml::Scalar(Scalar {
            text: text.to_owned(),
            plain: true,
        })
    }

    #[test]
    fn an_alias_stands_for_what_it_names() {
        let parsed = Yaml::parse("a: &x [1, &y z]\nb: *x\nc: *y\n");
        assert_eq!(parsed, Yaml::parse("a: [1, z]\nb: [1, z]\nc: z\n"));
        assert!(parsed.is_some());
        assert_eq!(Yaml::parse("a: &x [*x]\n"), None);
        assert_eq!(Yaml::parse("a: *x\n"), None);
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
            assert_eq!(Yaml::parse(&bomb), None);
        }
    }

    #[test]
    fn what_is_nested_too_deep_is_refused() {
        let nested = |depth: usize| format!("{}x{}", "[".repeat(depth), "]".repeat(depth));
        assert!(Yaml::parse(&nested(MAX_DEPTH)).is_some());
        assert_eq!(Yaml::parse(&nested(MAX_DEPTH + 1)), None);
        assert_eq!(Yaml::parse(&nested(100_000)), None);
    }

    #[test]
    fn a_name_that_is_given_twice_is_refused() {
        assert_eq!(Yaml::parse("a: 1\na: 2\n"), None);
    }

    #[test]
    fn one_document_is_read() {
        assert_eq!(Yaml::parse("x"), Some(scalar("x")));
        assert_eq!(Yaml::parse("x\n---\ny\n"), None);
        assert_eq!(Yaml::parse(""), None);
    }
}
