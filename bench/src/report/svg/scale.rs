//! The logarithmic axis.

/// A range of whole decades.
#[derive(Debug, PartialEq)]
pub(super) struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Makes the scale that holds all `costs`: at least from 0.1 to 10, at most from 0.01.
    pub(super) fn over(costs: impl Iterator<Item = f64>) -> Self {
        let mut scale = Self {
            low: -1.0,
            high: 1.0,
        };
        for cost in costs.filter(|cost| cost.is_finite() && *cost > 0.0) {
            scale.low = scale.low.min(cost.log10().floor()).max(-2.0);
            scale.high = scale.high.max(cost.log10().ceil());
        }
        scale
    }

    /// Returns where a cost lies, from 0 to 1. Costs off the scale lie at its ends.
    pub(super) fn position(&self, cost: f64) -> f64 {
        let decades = cost.max(f64::MIN_POSITIVE).log10();
        ((decades - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the decades with their labels.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let mut ticks = Vec::new();
        let mut decade = self.low;
        while decade <= self.high {
            let cost = 10_f64.powf(decade);
            ticks.push((cost, format!("{}×", (cost * 100.0).round() / 100.0)));
            decade += 1.0;
        }
        ticks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_grows_in_whole_decades() {
        assert_eq!(
            Scale::over([].into_iter()),
            Scale {
                low: -1.0,
                high: 1.0
            }
        );
        let scale = Scale::over([0.0, 0.02, 480.0].into_iter());
        assert_eq!(
            scale,
            Scale {
                low: -2.0,
                high: 3.0
            }
        );
        let labels: Vec<String> = scale.ticks().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.01×", "0.1×", "1×", "10×", "100×", "1000×"]);
    }

    #[test]
    fn positions_are_clamped_to_the_scale() {
        let scale = Scale {
            low: -1.0,
            high: 1.0,
        };
        assert_eq!(scale.position(0.0), 0.0);
        assert_eq!(scale.position(1.0), 0.5);
        assert_eq!(scale.position(1e9), 1.0);
    }
}
