//! The bars of one row.

use super::scale::Scale;
use super::{BAR, LEFT, RIGHT, text};
use crate::report::{Reach, Row};

/// A row as bars: its reference first, then one bar per target that has a value.
#[derive(Debug)]
pub(super) struct Group {
    title: String,
    /// The bars, from top to bottom.
    pub(super) bars: Vec<Bar>,
}

/// One bar.
#[derive(Debug)]
pub(super) struct Bar {
    /// Which colour: 0 is the reference.
    series: usize,
    /// Times the reference; more is always worse.
    cost: f64,
    label: String,
}

impl Group {
    /// Makes the bars of a row; `None` if there is nothing to compare with or nothing to compare.
    pub(super) fn new(row: &Row, targets: &[String]) -> Option<Self> {
        let limit = match row.reach {
            Some(Reach::AtMost(limit) | Reach::AtLeast(limit)) => Some(limit),
            Some(
                Reach::RatioAtMost(_)
                | Reach::RatioAtLeast(_)
                | Reach::StockAtMost(_)
                | Reach::StockAtLeast(_),
            )
            | None => None,
        };
        let (reference, label) = match (row.reference(), limit) {
            // The stock server has a bar of its own.
            (Some(stock), _) if row.floor.is_none() => (stock, None),
            (Some(floor), _) => (floor, Some(row.unit.show(floor))),
            (None, Some(limit)) if limit > 0.0 => {
                (limit, Some(format!("limit {}", row.unit.show(limit))))
            }
            (None, _) => return None,
        };
        let mut bars: Vec<Bar> = label
            .into_iter()
            .map(|label| Bar {
                series: 0,
                cost: 1.0,
                label,
            })
            .collect();
        for at in 0..targets.len() {
            let Some(value) = row.cells.get(at).and_then(|cell| cell.value()) else {
                continue;
            };
            let cost = if row.unit.more_is_better() {
                reference / value
            } else {
                value / reference
            };
            let label = format!("{} · {}", row.show_cell(at), times(cost));
            bars.push(Bar {
                series: at + 1,
                cost,
                label,
            });
        }
        (bars.len() > 1).then(|| Self {
            title: row.title.trim().to_owned(),
            bars,
        })
    }

    /// Returns the costs, for the scale.
    pub(super) fn costs(&self) -> impl Iterator<Item = f64> {
        self.bars.iter().map(|bar| bar.cost)
    }

    /// Draws the group with its upper edge at `y`.
    pub(super) fn draw(&self, svg: &mut String, scale: &Scale, y: f64) {
        let middle = y + self.bars.len() as f64 * BAR / 2.0 + 4.0;
        svg.push_str(&text("name", LEFT - 12.0, middle, &self.title));
        for (at, bar) in self.bars.iter().enumerate() {
            let y = y + at as f64 * BAR;
            let width = (scale.position(bar.cost) * (RIGHT - LEFT)).max(2.0);
            svg.push_str(&format!(
                "<rect class=\"{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width:.1}\" \
                 height=\"{:.1}\" rx=\"2\"/>\n",
                class(bar.series),
                y + 1.0,
                BAR - 2.0
            ));
            svg.push_str(&text(
                "value",
                LEFT + width + 6.0,
                y + BAR - 3.0,
                &bar.label,
            ));
        }
    }
}

/// Returns the style class of a series; there are four colours for targets.
pub(super) fn class(series: usize) -> String {
    let colour = if series == 0 { 0 } else { (series - 1) % 4 + 1 };
    format!("c{colour}")
}

fn times(cost: f64) -> String {
    if cost < 10.0 {
        format!("{cost:.2}×")
    } else {
        format!("{cost:.0}×")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Cell, Unit};

    #[test]
    fn longer_bar_means_higher_cost() {
        let targets = ["a".to_owned(), "b".to_owned()];
        let row = |unit| {
            let row = Row::new("x", "x", unit).floor(&Cell::Value(10.0));
            row.cells(&[Cell::Skipped(String::new()), Cell::Value(5.0)])
        };
        let rate = Group::new(&row(Unit::PerSecond), &targets).unwrap();
        assert_eq!(rate.costs().collect::<Vec<_>>(), [1.0, 2.0]);
        assert_eq!(rate.bars[1].series, 2);
        let time = Group::new(&row(Unit::Seconds), &targets).unwrap();
        assert_eq!(time.costs().collect::<Vec<_>>(), [1.0, 0.5]);
    }

    #[test]
    fn stock_reference_has_one_bar() {
        let row = Row {
            stock: Some(1),
            ..Row::new("x", "x", Unit::PerSecond)
        };
        let row = row.cells(&[Cell::Value(8.0), Cell::Value(2.0)]);
        let group = Group::new(&row, &["a".to_owned(), "b".to_owned()]).unwrap();
        assert_eq!(group.costs().collect::<Vec<_>>(), [0.25, 1.0]);
        assert_eq!(group.bars[1].series, 2);
    }

    #[test]
    fn row_without_reference_has_no_bars() {
        let row = Row::new("x", "x", Unit::Bytes).cells(&[Cell::Value(5.0)]);
        assert!(Group::new(&row, &["a".to_owned()]).is_none());
    }
}
