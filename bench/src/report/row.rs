//! One row: a floor, a reach, and a cell per target.

use super::unit::Unit;
use crate::rpc::Refusal;
use crate::target::{STOCK, Target};

/// One measure.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Its stable name.
    pub(crate) id: &'static str,
    /// Title in the table; details of the row above are indented.
    pub(crate) title: String,
    /// What its values count.
    pub(crate) unit: Unit,
    /// What the machine does without a server.
    pub(crate) floor: Option<Cell>,
    /// Goal for our server.
    pub(crate) reach: Option<Reach>,
    /// One per target, or none if only the floor is of interest.
    pub(crate) cells: Vec<Cell>,
    /// Which of them is the stock server's, if ratios are taken to that instead of to a floor.
    pub(crate) stock: Option<usize>,
}

impl Row {
    /// Makes a row without values.
    pub(crate) fn new(id: &'static str, title: &str, unit: Unit) -> Self {
        Self {
            id,
            title: title.to_owned(),
            unit,
            floor: None,
            reach: None,
            cells: Vec::new(),
            stock: None,
        }
    }

    /// Sets the floor.
    pub(crate) fn floor(self, floor: &Cell) -> Self {
        Self {
            floor: Some(floor.clone()),
            ..self
        }
    }

    /// Sets the goal for our server.
    pub(crate) fn reach(self, reach: Reach) -> Self {
        Self {
            reach: Some(reach),
            ..self
        }
    }

    /// Sets the values.
    pub(crate) fn cells(self, cells: &[Cell]) -> Self {
        Self {
            cells: cells.to_vec(),
            ..self
        }
    }

    /// Takes ratios to the stock server, for what the machine has no floor of.
    pub(crate) fn against_stock(self, targets: &[Target]) -> Self {
        Self {
            stock: targets.iter().position(|target| target.name() == STOCK),
            ..self
        }
    }

    /// Returns the ratio of a target to the reference, which has none itself.
    pub(crate) fn ratio(&self, target: usize) -> Option<f64> {
        let reference = self.reference()?;
        let value = self.cells.get(target)?.value()?;
        (self.floor.is_some() || self.stock != Some(target)).then_some(value / reference)
    }

    /// Returns what ratios are taken to: the floor, or else the stock server.
    pub(crate) fn reference(&self) -> Option<f64> {
        let reference = match &self.floor {
            Some(floor) => floor.value(),
            None => self.cells.get(self.stock?)?.value(),
        };
        reference.filter(|&reference| reference > 0.0)
    }

    /// Returns the floor, if the row has one and it was measured.
    pub(crate) fn floor_value(&self) -> Option<f64> {
        self.floor.as_ref()?.value()
    }

    /// Judges a target; `None` if there is nothing to judge.
    pub(crate) fn verdict(&self, target: usize) -> Option<bool> {
        let value = self.cells.get(target)?.value()?;
        Some(match self.reach? {
            Reach::RatioAtMost(limit) | Reach::StockAtMost(limit) => self.ratio(target)? <= limit,
            Reach::RatioAtLeast(limit) | Reach::StockAtLeast(limit) => self.ratio(target)? >= limit,
            Reach::AtMost(limit) => value <= limit,
            Reach::AtLeast(limit) => value >= limit,
        })
    }

    /// Shows the reach.
    pub(crate) fn show_reach(&self) -> String {
        match self.reach {
            None => String::new(),
            Some(Reach::RatioAtMost(limit)) => format!("≤ {limit} ×"),
            Some(Reach::RatioAtLeast(limit)) => format!("≥ {limit} ×"),
            Some(Reach::StockAtMost(limit)) => format!("≤ {limit} × {STOCK}"),
            Some(Reach::StockAtLeast(limit)) => format!("≥ {limit} × {STOCK}"),
            Some(Reach::AtMost(limit)) => format!("≤ {}", self.unit.show(limit)),
            Some(Reach::AtLeast(limit)) => format!("≥ {}", self.unit.show(limit)),
        }
    }

    /// Shows the ratio of a target to the reference.
    pub(crate) fn show_ratio(&self, target: usize) -> String {
        match self.ratio(target) {
            None => String::new(),
            Some(ratio) if ratio < 10.0 => format!("{ratio:.2} ×"),
            Some(ratio) => format!("{ratio:.0} ×"),
        }
    }

    /// Shows the value of a target.
    pub(crate) fn show_cell(&self, target: usize) -> String {
        self.show(self.cells.get(target))
    }

    /// Shows the floor.
    pub(crate) fn show_floor(&self) -> String {
        self.show(self.floor.as_ref())
    }

    fn show(&self, cell: Option<&Cell>) -> String {
        match cell {
            None => String::new(),
            Some(&Cell::Value(value)) => self.unit.show(value),
            Some(Cell::Skipped(_)) => "–".to_owned(),
            Some(Cell::Failed(_)) => "FAILED".to_owned(),
        }
    }
}

/// Goal for our server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Reach {
    /// At most this multiple of the floor.
    RatioAtMost(f64),
    /// At least this multiple of the floor.
    RatioAtLeast(f64),
    /// At most this multiple of the stock server's value.
    StockAtMost(f64),
    /// At least this multiple of the stock server's value.
    StockAtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// At least this value.
    AtLeast(f64),
}

/// The outcome of one measure for one target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cell {
    /// It was measured.
    Value(f64),
    /// It does not apply, for the reason given.
    Skipped(String),
    /// The target did not do what the protocol says.
    Failed(String),
}

impl Cell {
    /// Explains a missing value. A target without the method is not applicable.
    pub(crate) fn without(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<Refusal>() {
            Some(refusal) if refusal.is_unknown_method() => {
                Self::Skipped("does not have the method".to_owned())
            }
            Some(_) | None => Self::Failed(format!("{error:#}")),
        }
    }

    /// Returns the value, if there is one.
    pub(crate) const fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value) => Some(*value),
            Self::Skipped(_) | Self::Failed(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_judged_against_floor_or_value() {
        let row = |reach| {
            let row = Row::new("x", "x", Unit::Seconds)
                .floor(&Cell::Value(2.0))
                .reach(reach);
            row.cells(&[Cell::Value(3.0), Cell::Skipped(String::new())])
        };
        assert_eq!(row(Reach::RatioAtMost(1.5)).verdict(0), Some(true));
        assert_eq!(row(Reach::RatioAtMost(1.4)).verdict(0), Some(false));
        assert_eq!(row(Reach::RatioAtLeast(1.6)).verdict(0), Some(false));
        assert_eq!(row(Reach::AtMost(2.9)).verdict(0), Some(false));
        assert_eq!(row(Reach::AtMost(3.0)).verdict(1), None);
        assert_eq!(row(Reach::AtLeast(3.0)).verdict(0), Some(true));
        assert_eq!(row(Reach::AtLeast(3.1)).verdict(0), Some(false));
    }

    #[test]
    fn stock_server_can_replace_the_floor() {
        let row = Row {
            stock: Some(1),
            ..Row::new("x", "x", Unit::PerSecond)
        };
        let row = row.reach(Reach::StockAtLeast(3.0));
        let measured = row.clone().cells(&[Cell::Value(8.0), Cell::Value(2.0)]);
        assert_eq!(measured.ratio(0), Some(4.0));
        assert_eq!(measured.verdict(0), Some(true));
        assert_eq!(measured.ratio(1), None);
        assert_eq!(measured.show_reach(), "≥ 3 × stock");
        let alone = row.cells(&[Cell::Value(8.0), Cell::Skipped(String::new())]);
        assert_eq!(alone.verdict(0), None);
    }
}
