//! Percentiles, and the contenders that take turns so that noise affects all alike.

use std::fmt;

use anyhow::Result;

use crate::report::ReportCell;

/// Returns the `percent`-th percentile by nearest rank, or `None` without samples.
pub(crate) fn percentile(samples: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent.min(100)).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// Returns the median of the samples.
pub(crate) fn p50(samples: &[f64]) -> Option<f64> {
    percentile(samples, 50)
}

/// A contender in a measure: a block of work that yields samples in each turn.
pub(crate) struct Contender<'a, S> {
    samples: Vec<S>,
    state: ContenderState<'a, S>,
}

impl<'a, S> Contender<'a, S> {
    /// Creates a contender that runs `block` each turn. `block` appends the samples of the turn.
    ///
    /// An error of `block` stops only this contender.
    pub(crate) fn new(block: impl FnMut(&mut Vec<S>) -> Result<()> + 'a) -> Self {
        Self {
            samples: Vec::new(),
            state: ContenderState::Ready(Box::new(block)),
        }
    }

    /// Creates a contender that is skipped for the given reason.
    pub(crate) fn skipped(reason: &str) -> Self {
        Self {
            samples: Vec::new(),
            state: ContenderState::Stopped(ReportCell::Skipped(reason.to_owned())),
        }
    }

    /// Returns the prepared contender, or a failed one if preparing it failed.
    pub(crate) fn from_result(result: Result<Self>) -> Self {
        result.unwrap_or_else(|error| Self {
            samples: Vec::new(),
            state: ContenderState::Stopped(ReportCell::from_error(&error)),
        })
    }

    /// Reduces the samples to one number.
    pub(crate) fn cell(&self, reduce: impl FnOnce(&[S]) -> Option<f64>) -> ReportCell {
        match &self.state {
            ContenderState::Ready(_) => reduce(&self.samples).map_or_else(
                || ReportCell::Skipped("not measurable".to_owned()),
                ReportCell::Value,
            ),
            ContenderState::Stopped(cell) => cell.clone(),
        }
    }

    fn run_turn(&mut self) {
        if let ContenderState::Ready(block) = &mut self.state
            && let Err(error) = block(&mut self.samples)
        {
            self.state = ContenderState::Stopped(ReportCell::from_error(&error));
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Contender<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contender")
            .field("samples", &self.samples)
            .finish_non_exhaustive()
    }
}

enum ContenderState<'a, S> {
    Ready(SampleBlock<'a, S>),
    /// The contender has no value, for the reason in the cell.
    Stopped(ReportCell),
}

type SampleBlock<'a, S> = Box<dyn FnMut(&mut Vec<S>) -> Result<()> + 'a>;

/// Gives every contender `blocks` turns. Each round starts with another contender.
pub(crate) fn interleave<S>(blocks: usize, contenders: &mut [Contender<'_, S>]) {
    for round in 0..blocks {
        let (before, after) = contenders.split_at_mut(round % contenders.len().max(1));
        after.iter_mut().chain(before).for_each(Contender::run_turn);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let samples = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!(p50(&samples), Some(3.0));
        assert_eq!(p50(&samples[..4]), Some(2.0));
        assert_eq!(percentile(&samples, 0), Some(1.0));
        assert_eq!(percentile(&samples, 99), Some(5.0));
        assert_eq!(p50(&[]), None);
    }

    #[test]
    fn lanes_alternate_and_a_failed_lane_stops_alone() {
        let order = RefCell::new(String::new());
        let contender = |name: char| {
            let order = &order;
            Contender::new(move |samples: &mut Vec<f64>| {
                order.borrow_mut().push(name);
                samples.push(1.0);
                anyhow::ensure!(name != 'b', "broken");
                Ok(())
            })
        };
        let mut contenders = [contender('a'), contender('b'), contender('c')];
        interleave(3, &mut contenders);
        assert_eq!(*order.borrow(), "abccaca");
        assert_eq!(contenders[0].cell(p50), ReportCell::Value(1.0));
        assert_eq!(
            contenders[1].cell(p50),
            ReportCell::Failed("broken".to_owned())
        );
    }
}
