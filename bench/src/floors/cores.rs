//! Where the two ends of a floor run. Left alone, the scheduler keeps them on one core or spreads
//! them over two, as it happens; a message to another core takes several times as long.

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// One of the cores that we may use.
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
        let all = sched_getaffinity(None).context("cannot tell our cores")?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core));
        let core = match self {
            Self::First => cores.next(),
            Self::Last => cores.next_back(),
        };
        let mut one = CpuSet::new();
        one.set(core.context("we may use no core")?);
        sched_setaffinity(None, &one).context("cannot choose a core")?;
        let outcome = work();
        sched_setaffinity(None, &all).context("cannot go back to all cores")?;
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_runs_on_one_core_and_the_rest_on_all() {
        let count = || Ok(sched_getaffinity(None)?.count());
        let all = count().unwrap();
        assert_eq!(Core::First.run(count).unwrap(), 1);
        assert_eq!(Core::Last.run(count).unwrap(), 1);
        assert_eq!(count().unwrap(), all);
    }
}
