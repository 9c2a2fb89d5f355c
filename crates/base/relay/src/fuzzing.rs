//! Entry points of the fuzz targets `relay_frame` and `noise_record`.
//!
//! Invariants checked: a frame that is taken means the same after it was encoded again, and a relay
//! reads the same of it; a stream neither panics nor delivers what was not sealed for it, and stays
//! ended once it is. Not here: the targets themselves and their corpora (`fuzz/`).

mod frame;
mod record;
#[cfg(test)]
mod tests;

pub use frame::relay_frame;
pub use record::noise_record;
