//! Units of the rows. Values are kept in base units and scaled only to be shown.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_at_a_readable_scale() {
        assert_eq!(Unit::Seconds.show(0.000_021_34), "21.3 µs");
        assert_eq!(Unit::Seconds.show(0.0123), "12.30 ms");
        assert_eq!(Unit::Bytes.show(8_388_608.0), "8.0 MiB");
        assert_eq!(Unit::PerSecond.show(1234.4), "1234 /s");
    }
}
