//! The machine that a run took place on, as far as numbers depend on it.

use std::fs;
use std::thread;

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
            cpu: model(&info).unwrap_or("unknown").to_owned(),
            cores: thread::available_parallelism().map_or(0, usize::from),
            memory: total(&memory).unwrap_or(0),
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

fn model(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim())
}

fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.split_ascii_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_model_is_parsed() {
        assert_eq!(
            model("processor\t: 0\nmodel name\t: Fast CPU\n"),
            Some("Fast CPU")
        );
        assert_eq!(model(""), None);
    }

    #[test]
    fn memory_is_reported_in_bytes() {
        assert_eq!(total("MemTotal:       2 kB\nMemFree: 1 kB\n"), Some(2048));
    }
}
