//! CPU placement of the two ends of a floor. By default the scheduler keeps them on one core or
//! spreads them over two at random, and a message to another core takes several times as long.

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Core of our affinity mask.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Core {
    /// The first one.
    First,
    /// The last one; the first as well if there is only one.
    Last,
}

impl Core {
    /// Does `work` on this core alone; what it spawns stays there.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let all = sched_getaffinity(None).context("cannot read the CPU affinity")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
        let core = match self {
            Self::First => cores.next(),
            Self::Last => cores.next_back(),
        };
        let mut one = CpuSet::new();
        one.set(core.context("CPU affinity mask is empty")?);
        sched_setaffinity(None, &one).context("cannot set the CPU affinity")?;
        let outcome = work();
        sched_setaffinity(None, &all).context("cannot restore the CPU affinity")?;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn affinity_is_restored_after_work_on_one_core() {
        let count = || Ok(sched_getaffinity(None)?.count());
        let all = count().unwrap();
        assert_eq!(Core::First.run(count).unwrap(), 1);
        assert_eq!(Core::Last.run(count).unwrap(), 1);
        assert_eq!(count().unwrap(), all);
    }
}
