//! A link with faults, in virtual time.

use std::collections::BTreeMap;

use super::*;

/// Seeded randomness: splitmix64.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// How bad a link is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults {
    /// Milliseconds that every frame takes.
    pub(super) delay: u64,
    /// Milliseconds that a frame may take longer, and so be overtaken.
    pub(super) jitter: u64,
    pub(super) drop_percent: u64,
    pub(super) duplicate_percent: u64,
}

/// One direction of a connection.
pub(super) struct Link {
    faults: Faults,
    dice: Dice,
    frames: BTreeMap<(Instant, u64), Bytes>,
    count: u64,
}

impl Link {
    pub(super) fn new(faults: Faults, seed: u64) -> Self {
        Self {
            faults,
            dice: Dice::new(seed),
            frames: BTreeMap::new(),
            count: 0,
        }
    }

    pub(super) fn send(&mut self, frame: Bytes, now: Instant) {
        if self.dice.percent(self.faults.drop_percent) {
            return;
        }
        let copies = 1 + u64::from(self.dice.percent(self.faults.duplicate_percent));
        for _ in 0..copies {
            let late = self.dice.below(self.faults.jitter + 1);
            self.count += 1;
            let key = (now + ms(self.faults.delay + late), self.count);
            // A copy of its own: what arrives is never shared with what is kept.
            self.frames.insert(key, Bytes::copy_from_slice(&frame));
        }
    }

    pub(super) fn receive(&mut self, now: Instant) -> Option<Bytes> {
        let entry = self.frames.first_entry()?;
        (entry.key().0 <= now).then(|| entry.remove())
    }

    /// Loses everything that is on its way.
    pub(super) fn cut(&mut self) {
        self.frames.clear();
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.frames.keys().next().map(|key| key.0)
    }
}
