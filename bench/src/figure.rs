//! A figure: the ratio of two lanes over some rounds, what it has to reach, and what both were made of.

use crate::counters::Counters;
use serde::Serialize;

/// What one lane did in one round: a rate, or a time.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    /// For each event; empty where only the value was looked at.
    pub(crate) counters: Counters,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Sample {
            value,
            counters: Counters::default(),
        }
    }
}

/// What a value counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Milliseconds,
    Mebibytes,
    Percent,
}

/// What the median has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Aim {
    AtLeast(f64),
    AtMost(f64),
    /// Only told.
    Told,
}

/// Several samples of one lane.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Lane {
    pub(crate) values: Vec<f64>,
    /// Medians.
    pub(crate) counters: Counters,
}

impl Lane {
    pub(crate) fn of(samples: &[Sample]) -> Self {
        let values = samples.iter().map(|sample| sample.value).collect();
        let mut counters = Counters::default();
        for name in samples.iter().flat_map(|sample| sample.counters.keys()) {
            let counted: Vec<f64> = samples
                .iter()
                .filter_map(|sample| sample.counters.get(name).copied())
                .collect();
            counters.insert(*name, median(&counted));
        }
        Lane { values, counters }
    }

    pub(crate) fn median(&self) -> f64 {
        median(&self.values)
    }
}

/// A line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figure {
    pub(crate) row: &'static str,
    pub(crate) what: String,
    pub(crate) against: String,
    /// Where it makes sense.
    pub(crate) tasks: Option<u32>,
    pub(crate) unit: Unit,
    pub(crate) aim: Aim,
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    /// `None`: only told.
    pub(crate) reached: Option<bool>,
    pub(crate) by_hand: Lane,
    pub(crate) eventloom: Lane,
}

impl Figure {
    /// Eventloom's value for one by hand, round by round.
    pub(crate) fn new(
        row: &'static str,
        what: impl Into<String>,
        against: impl Into<String>,
        by_hand: &[Sample],
        eventloom: &[Sample],
    ) -> Self {
        let (by_hand, eventloom) = (Lane::of(by_hand), Lane::of(eventloom));
        let pairs = eventloom.values.iter().zip(&by_hand.values);
        let ratios: Vec<f64> = pairs.map(|(ours, floor)| ours / floor).collect();
        Figure {
            row,
            what: what.into(),
            against: against.into(),
            tasks: None,
            unit: Unit::PerSecond,
            aim: Aim::Told,
            median: median(&ratios),
            lowest: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            highest: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            reached: None,
            by_hand,
            eventloom,
        }
    }

    pub(crate) fn tasks(mut self, tasks: u32) -> Self {
        self.tasks = Some(tasks);
        self
    }

    pub(crate) fn unit(mut self, unit: Unit) -> Self {
        self.unit = unit;
        self
    }

    pub(crate) fn milliseconds(mut self) -> Self {
        self.unit = Unit::Milliseconds;
        self
    }

    pub(crate) fn aim(mut self, aim: Aim) -> Self {
        self.aim = aim;
        self.reached = match aim {
            Aim::AtLeast(ratio) => Some(self.median >= ratio),
            Aim::AtMost(ratio) => Some(self.median <= ratio),
            Aim::Told => None,
        };
        self
    }

    /// Adds what was counted in passes of their own, whose times mean nothing.
    pub(crate) fn counted(mut self, by_hand: &Counters, eventloom: &Counters) -> Self {
        self.by_hand.counters.extend(by_hand);
        self.eventloom.counters.extend(eventloom);
        self
    }

    /// Whether something was measured at all.
    pub(crate) fn has_numbers(&self) -> bool {
        let all = self.by_hand.values.iter().chain(&self.eventloom.values);
        !self.eventloom.values.is_empty() && all.clone().all(|value| value.is_finite() && *value > 0.0)
    }
}

/// The middle one, or the mean of the two in the middle.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}
