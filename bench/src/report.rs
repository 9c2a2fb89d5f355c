//! Results of a run: one row per measure, with a floor, a goal and a cell per target.
//!
//! Values are in base units; they are scaled only for display. The children render the results.

pub(crate) mod svg_chart;
pub(crate) mod text;

use std::{fs, thread};

use crate::bench_target::{STOCK, Target};
use crate::rpc_message::Refusal;

/// Results of one run.
#[derive(Debug)]
pub(crate) struct Report {
    /// Where it ran.
    pub(crate) machine: Machine,
    /// Whether it was only a smoke run.
    pub(crate) quick: bool,
    /// Titles of the columns, in the order of the cells of each row.
    pub(crate) targets: Vec<String>,
    /// The rows.
    pub(crate) rows: Vec<Row>,
}

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

/// What a value counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Unit {
    /// Time; shown in µs or ms.
    Seconds,
    /// Events per second.
    PerSecond,
    /// Throughput; shown in MiB/s.
    BytesPerSecond,
    /// CPU seconds per GiB moved.
    CpuPerGib,
    /// Memory or size; shown in MiB.
    Bytes,
    /// Memory of something small; in bytes, shown in KiB.
    Kibibytes,
    /// A number of things.
    Count,
    /// A part of a whole; shown in percent.
    Share,
}

impl Unit {
    /// Shows a value with its unit.
    pub(crate) fn show(self, value: f64) -> String {
        const MIB: f64 = (1 << 20) as f64;
        match self {
            Self::Seconds if value < 0.001 => format!("{:.1} µs", value * 1e6),
            Self::Seconds => format!("{:.2} ms", value * 1e3),
            Self::PerSecond => format!("{value:.0} /s"),
            Self::BytesPerSecond => format!("{:.0} MiB/s", value / MIB),
            Self::CpuPerGib => format!("{value:.2} s/GiB"),
            Self::Bytes => format!("{:.1} MiB", value / MIB),
            Self::Kibibytes => format!("{:.1} KiB", value / 1024.0),
            Self::Count => format!("{value:.0}"),
            Self::Share => format!("{:.0} %", value * 100.0),
        }
    }

    /// Returns the name of the base unit.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::PerSecond => "perSecond",
            Self::BytesPerSecond => "bytesPerSecond",
            Self::CpuPerGib => "cpuSecondsPerGib",
            Self::Bytes | Self::Kibibytes => "bytes",
            Self::Count => "count",
            Self::Share => "share",
        }
    }

    /// Returns whether more is better.
    pub(crate) const fn more_is_better(self) -> bool {
        match self {
            Self::PerSecond | Self::BytesPerSecond | Self::Share => true,
            Self::Seconds | Self::CpuPerGib | Self::Bytes | Self::Kibibytes | Self::Count => false,
        }
    }
}

/// A description of the machine.
#[derive(Debug)]
pub(crate) struct Machine {
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// Processors we may use.
    pub(crate) cores: usize,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Kernel name, release and architecture.
    pub(crate) kernel: String,
}

impl Machine {
    /// Describes this machine; missing values are `unknown`.
    pub(crate) fn here() -> Self {
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let uname = rustix::system::uname();
        let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self {
            cpu: cpu_model(&info).unwrap_or("unknown").to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory: total_memory(&memory).unwrap_or(0),
            kernel: [uname.sysname(), uname.release(), uname.machine()]
                .map(text)
                .join(" "),
        }
    }

    /// Shows it in one line.
    pub(crate) fn show(&self) -> String {
        let gib = self.memory as f64 / f64::from(1 << 30);
        format!(
            "{}, {} cores, {gib:.0} GiB, {}",
            self.cpu, self.cores, self.kernel
        )
    }
}

fn cpu_model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
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

    #[test]
    fn values_are_shown_at_a_readable_scale() {
        assert_eq!(Unit::Seconds.show(0.000_021_34), "21.3 µs");
        assert_eq!(Unit::Seconds.show(0.0123), "12.30 ms");
        assert_eq!(Unit::Bytes.show(8_388_608.0), "8.0 MiB");
        assert_eq!(Unit::PerSecond.show(1234.4), "1234 /s");
    }

    #[test]
    fn cpu_model_is_parsed() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Fast CPU\n"),
            Some("Fast CPU")
        );
        assert_eq!(cpu_model(""), None);
    }

    #[test]
    fn memory_is_reported_in_bytes() {
        assert_eq!(
            total_memory("MemTotal:       2 kB\nMemFree: 1 kB\n"),
            Some(2048)
        );
    }
}
