//! Where a message stands and who may move it: positions, lanes and epochs.

use md5::{Digest, Md5};
use std::{fmt, num::NonZeroU16};

/// A place in a log. Grows, has holes, and is never skipped by a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub i64);

impl Position {
    /// Before the first row of any log.
    pub const START: Position = Position(0);
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The number that fences a former owner: each taking of a lane raises it, and an owner's
/// transactions touch nothing once it has been raised by somebody else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub i64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One of a fixed number of hash classes of keys: the unit of order, lease and parallelism.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(pub i16);

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many lanes a log has. Fixed when its tables are made; 64 unless chosen otherwise, 16,384 at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneCount(NonZeroU16);

impl LaneCount {
    /// The most lanes a log can have: a lane is a `smallint` in the tables.
    pub const MAX: u16 = 16_384;

    /// `None` for 0, and above [`LaneCount::MAX`].
    pub const fn new(count: u16) -> Option<Self> {
        match NonZeroU16::new(count) {
            Some(count) if count.get() <= Self::MAX => Some(LaneCount(count)),
            _ => None,
        }
    }

    /// The number itself.
    pub const fn get(self) -> u16 {
        self.0.get()
    }

    /// The lane of a key: the first four bytes of its MD5, big endian, modulo the number of lanes.
    ///
    /// The tables of Postgres compute the same number in a trigger, so it must never change.
    /// A message without a key is spread by its logical id.
    ///
    /// ```
    /// use eventloom_core::LaneCount;
    /// assert_eq!(LaneCount::default().lane_of("order-17").0, 13);
    /// ```
    pub fn lane_of(self, key_or_id: &str) -> Lane {
        let digest = Md5::digest(key_or_id.as_bytes());
        let head = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        // Below 16,384, so it fits.
        Lane((head % u32::from(self.get())) as i16)
    }

    /// Every lane, in order.
    pub fn all(self) -> impl Iterator<Item = Lane> {
        (0..self.get()).map(|lane| Lane(lane as i16))
    }
}

impl Default for LaneCount {
    fn default() -> Self {
        LaneCount(NonZeroU16::new(64).unwrap_or(NonZeroU16::MIN))
    }
}
