//! What a service counts: plain numbers that others read and render.
//! Invariant: counting takes no lock and no memory, so that it can stand on the way of every message.
//! Not here: names, formats and listeners; whoever presents the numbers has those.

mod all;
mod counter;
mod histogram;
mod outcome;
mod requests;
mod tally;

pub(crate) use self::counter::Held;
pub use self::{
    all::{Levels, Meters},
    counter::{Counter, Gauge},
    histogram::{BOUNDS_MICROS, Histogram, HistogramValues},
    outcome::Outcome,
    requests::{MethodMeter, RequestMeters},
    tally::{Endings, Refusal, Refusals, Ruling, Rulings},
};
