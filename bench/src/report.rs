//! Results of a run: one row per measure, with a floor, a goal and a cell per target.
//!
//! Values are in base units; they are scaled only for display. The children render the results.

pub(crate) mod svg_chart;
pub(crate) mod text;

use std::{fs, thread};

use crate::bench_target::{BenchTarget, STOCK};
use crate::rpc_message::CallRefusal;

/// Results of one run.
#[derive(Debug)]
pub(crate) struct RunReport {
    /// Machine of the run.
    pub(crate) machine: MachineInfo,
    /// Whether it was only a smoke run.
    pub(crate) quick: bool,
    /// Titles of the columns, in the order of the cells of each row.
    pub(crate) targets: Vec<String>,
    /// The rows.
    pub(crate) rows: Vec<ReportRow>,
}

/// One measure.
#[derive(Clone, Debug)]
pub(crate) struct ReportRow {
    /// Stable name of the measure.
    pub(crate) id: &'static str,
    /// Title in the table; details of the row above are indented.
    pub(crate) title: String,
    /// Unit of the values.
    pub(crate) unit: ValueUnit,
    /// Value of the machine without a server.
    pub(crate) floor: Option<ReportCell>,
    /// Goal for our server.
    pub(crate) goal: Option<RowGoal>,
    /// One cell per target, or none if only the floor is of interest.
    pub(crate) cells: Vec<ReportCell>,
    /// Index of the stock server's cell, if it is the reference instead of a floor.
    pub(crate) stock: Option<usize>,
}

impl ReportRow {
    /// Creates a row without values.
    pub(crate) fn new(id: &'static str, title: &str, unit: ValueUnit) -> Self {
        Self {
            id,
            title: title.to_owned(),
            unit,
            floor: None,
            goal: None,
            cells: Vec::new(),
            stock: None,
        }
    }

    /// Sets the floor.
    pub(crate) fn floor(self, floor: &ReportCell) -> Self {
        Self {
            floor: Some(floor.clone()),
            ..self
        }
    }

    /// Sets the goal for our server.
    pub(crate) fn goal(self, goal: RowGoal) -> Self {
        Self {
            goal: Some(goal),
            ..self
        }
    }

    /// Sets the values.
    pub(crate) fn cells(self, cells: &[ReportCell]) -> Self {
        Self {
            cells: cells.to_vec(),
            ..self
        }
    }

    /// Makes the stock server the reference, for measures without a floor.
    pub(crate) fn relative_to_stock(self, targets: &[BenchTarget]) -> Self {
        Self {
            stock: targets.iter().position(|target| target.name() == STOCK),
            ..self
        }
    }

    /// Returns the ratio of a target to the reference; `None` for the reference itself.
    pub(crate) fn ratio(&self, target: usize) -> Option<f64> {
        let reference = self.reference()?;
        let value = self.cells.get(target)?.value()?;
        (self.floor.is_some() || self.stock != Some(target)).then_some(value / reference)
    }

    /// Returns the reference of the ratios: the floor, or else the stock server's value.
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

    /// Returns whether a target meets the goal; `None` without a goal or a value.
    pub(crate) fn meets_goal(&self, target: usize) -> Option<bool> {
        let value = self.cells.get(target)?.value()?;
        Some(match self.goal? {
            RowGoal::RatioAtMost(limit) | RowGoal::StockAtMost(limit) => {
                self.ratio(target)? <= limit
            }
            RowGoal::RatioAtLeast(limit) | RowGoal::StockAtLeast(limit) => {
                self.ratio(target)? >= limit
            }
            RowGoal::AtMost(limit) => value <= limit,
            RowGoal::AtLeast(limit) => value >= limit,
        })
    }

    /// Formats the goal.
    pub(crate) fn format_goal(&self) -> String {
        match self.goal {
            None => String::new(),
            Some(RowGoal::RatioAtMost(limit)) => format!("≤ {limit} ×"),
            Some(RowGoal::RatioAtLeast(limit)) => format!("≥ {limit} ×"),
            Some(RowGoal::StockAtMost(limit)) => format!("≤ {limit} × {STOCK}"),
            Some(RowGoal::StockAtLeast(limit)) => format!("≥ {limit} × {STOCK}"),
            Some(RowGoal::AtMost(limit)) => format!("≤ {}", self.unit.format(limit)),
            Some(RowGoal::AtLeast(limit)) => format!("≥ {}", self.unit.format(limit)),
        }
    }

    /// Formats the ratio of a target to the reference.
    pub(crate) fn format_ratio(&self, target: usize) -> String {
        match self.ratio(target) {
            None => String::new(),
            Some(ratio) if ratio < 10.0 => format!("{ratio:.2} ×"),
            Some(ratio) => format!("{ratio:.0} ×"),
        }
    }

    /// Formats the value of a target.
    pub(crate) fn format_cell(&self, target: usize) -> String {
        self.format_optional(self.cells.get(target))
    }

    /// Formats the floor.
    pub(crate) fn format_floor(&self) -> String {
        self.format_optional(self.floor.as_ref())
    }

    fn format_optional(&self, cell: Option<&ReportCell>) -> String {
        match cell {
            None => String::new(),
            Some(&ReportCell::Value(value)) => self.unit.format(value),
            Some(ReportCell::Skipped(_)) => "–".to_owned(),
            Some(ReportCell::Failed(_)) => "FAILED".to_owned(),
        }
    }
}

/// Goal for our server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RowGoal {
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

/// Outcome of one measure for one target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ReportCell {
    /// The measured value.
    Value(f64),
    /// The measure does not apply, for this reason.
    Skipped(String),
    /// The measure failed, usually because the target violated the protocol.
    Failed(String),
}

impl ReportCell {
    /// Converts an error. The measure is skipped for a target that lacks the method.
    pub(crate) fn from_error(error: &anyhow::Error) -> Self {
        match error.downcast_ref::<CallRefusal>() {
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

/// Unit of a value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum ValueUnit {
    /// Time, displayed in µs or ms.
    Seconds,
    /// Events per second.
    PerSecond,
    /// Throughput, displayed in MiB/s.
    BytesPerSecond,
    /// CPU seconds per GiB transferred.
    CpuPerGib,
    /// Memory or size, displayed in MiB.
    Bytes,
    /// Small amount of memory in bytes, displayed in KiB.
    Kibibytes,
    /// A count.
    Count,
    /// A fraction, displayed in percent.
    Share,
}

impl ValueUnit {
    /// Formats a value with its unit.
    pub(crate) fn format(self, value: f64) -> String {
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

    /// Returns whether a higher value is better.
    pub(crate) const fn higher_is_better(self) -> bool {
        match self {
            Self::PerSecond | Self::BytesPerSecond | Self::Share => true,
            Self::Seconds | Self::CpuPerGib | Self::Bytes | Self::Kibibytes | Self::Count => false,
        }
    }
}

/// Description of the machine, as far as the numbers depend on it.
#[derive(Debug)]
pub(crate) struct MachineInfo {
    /// Model name of the processor.
    pub(crate) cpu: String,
    /// Number of processors available to us.
    pub(crate) cores: usize,
    /// Bytes of memory.
    pub(crate) memory: u64,
    /// Kernel name, release and architecture.
    pub(crate) kernel: String,
}

impl MachineInfo {
    /// Describes this machine; missing values are `unknown`.
    pub(crate) fn detect() -> Self {
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

    /// Describes the machine in one line.
    pub(crate) fn summary(&self) -> String {
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
        let row = |goal| {
            let row = ReportRow::new("x", "x", ValueUnit::Seconds)
                .floor(&ReportCell::Value(2.0))
                .goal(goal);
            row.cells(&[ReportCell::Value(3.0), ReportCell::Skipped(String::new())])
        };
        assert_eq!(row(RowGoal::RatioAtMost(1.5)).meets_goal(0), Some(true));
        assert_eq!(row(RowGoal::RatioAtMost(1.4)).meets_goal(0), Some(false));
        assert_eq!(row(RowGoal::RatioAtLeast(1.6)).meets_goal(0), Some(false));
        assert_eq!(row(RowGoal::AtMost(2.9)).meets_goal(0), Some(false));
        assert_eq!(row(RowGoal::AtMost(3.0)).meets_goal(1), None);
        assert_eq!(row(RowGoal::AtLeast(3.0)).meets_goal(0), Some(true));
        assert_eq!(row(RowGoal::AtLeast(3.1)).meets_goal(0), Some(false));
    }

    #[test]
    fn stock_server_can_replace_the_floor() {
        let row = ReportRow {
            stock: Some(1),
            ..ReportRow::new("x", "x", ValueUnit::PerSecond)
        };
        let row = row.goal(RowGoal::StockAtLeast(3.0));
        let measured = row
            .clone()
            .cells(&[ReportCell::Value(8.0), ReportCell::Value(2.0)]);
        assert_eq!(measured.ratio(0), Some(4.0));
        assert_eq!(measured.meets_goal(0), Some(true));
        assert_eq!(measured.ratio(1), None);
        assert_eq!(measured.format_goal(), "≥ 3 × stock");
        let alone = row.cells(&[ReportCell::Value(8.0), ReportCell::Skipped(String::new())]);
        assert_eq!(alone.meets_goal(0), None);
    }

    #[test]
    fn values_are_shown_at_a_readable_scale() {
        assert_eq!(ValueUnit::Seconds.format(0.000_021_34), "21.3 µs");
        assert_eq!(ValueUnit::Seconds.format(0.0123), "12.30 ms");
        assert_eq!(ValueUnit::Bytes.format(8_388_608.0), "8.0 MiB");
        assert_eq!(ValueUnit::PerSecond.format(1234.4), "1234 /s");
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
