//! What the screen shows while it runs, and what can be known from the tables: how far everything is.

use crate::{
    consume::{Group, RELAY},
    mail::MailCount,
    run::{Run, standing_of},
    store::{Shop, Standing},
};
use eventloom::chain;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use orders_ledger::grouped;
use std::{
    io::{IsTerminal, stderr},
    time::{Duration, Instant},
};

const NAMES: [&str; 4] = ["placed", "totals", "revenue", "mailer"];
/// Between two lines, where there is no terminal to draw bars on.
const LINES_EVERY: Duration = Duration::from_secs(2);
/// Nothing has moved for so long: perhaps there is nothing left to do.
const QUIET_AFTER: Duration = Duration::from_secs(3);
/// Nothing has moved for so long: something is broken.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Progress of placing and of the three groups, in this order.
pub(crate) struct Board {
    bars: Option<Vec<ProgressBar>>,
    mail: MailCount,
    purchases: u64,
    began: Instant,
    first: Option<[u64; 4]>,
    counts: [u64; 4],
    /// Held messages that will be tried again.
    due: u64,
    done: [Option<Duration>; 4],
    moved: Instant,
    said: Instant,
    trouble: Option<String>,
}

/// How much one of the four did in this run, and in which time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rate {
    pub(crate) name: &'static str,
    pub(crate) count: u64,
    pub(crate) took: Duration,
}

impl Board {
    pub(crate) fn of<S, B>(run: &Run<S, B>) -> Self {
        let purchases = run.purchases as u64;
        let now = Instant::now();
        Board {
            bars: stderr().is_terminal().then(|| bars(purchases)),
            mail: MailCount::of(&run.mailbox),
            purchases,
            began: now,
            first: None,
            counts: [0; 4],
            due: 0,
            done: [None; 4],
            moved: now,
            said: now,
            trouble: None,
        }
    }

    /// Looks at the tables and at the mailer's file. A database that does not answer is looked at again.
    pub(crate) async fn look<S: Shop, B: Shop>(&mut self, run: &Run<S, B>) {
        let standing = standing_of(&run.shop, &run.market)
            .await
            .map_err(|error| chain(&error).to_string());
        let looked = standing.and_then(|standing| {
            let mailed = self.mail.look().map_err(|error| chain(&error).to_string())?;
            Ok((standing, mailed))
        });
        match looked {
            Ok((standing, mailed)) => self.note(standing, mailed),
            Err(error) => self.trouble = Some(error),
        }
        self.show();
    }

    fn note(&mut self, standing: Standing, mailed: u64) {
        let counts = [standing.placed, standing.totals, standing.revenue, mailed];
        self.first.get_or_insert(counts);
        if counts != self.counts {
            (self.moved, self.trouble) = (Instant::now(), None);
        }
        self.counts = counts;
        self.due = standing.held.iter().map(|held| held.due).sum();
        for (place, count) in counts.into_iter().enumerate() {
            // What is held and will not be tried again by itself is as far as it can come.
            let held = place
                .checked_sub(1)
                .map(|group| standing.held[group])
                .unwrap_or_default();
            if self.done[place].is_none() && count + held.messages >= self.purchases && held.due == 0 {
                self.done[place] = Some(self.began.elapsed());
            }
        }
    }

    /// Whether all of one of the four is done.
    pub(crate) fn is_done(&self, name: &str) -> bool {
        NAMES
            .iter()
            .zip(self.done)
            .any(|(of, done)| *of == name && done.is_some())
    }

    /// Whether nothing is left to do: everything is seen to be done, or all groups are at the end of the log although
    /// not every effect is there. Which ones are not is for the ledger to say.
    pub(crate) async fn all_done<S: Shop, B: Shop>(&self, run: &Run<S, B>) -> bool {
        if self.done.iter().all(Option::is_some) {
            return true;
        }
        let is_quiet = self.moved.elapsed() > QUIET_AFTER && self.done[0].is_some() && self.due == 0;
        is_quiet && self.at_the_end(run).await
    }

    async fn at_the_end<S: Shop, B: Shop>(&self, run: &Run<S, B>) -> bool {
        let (Ok(mut readers), Ok(relays)) = (run.market.readers(None).await, run.shop.readers(None).await) else {
            return false;
        };
        readers.retain(|reader| NAMES.contains(&reader.name.as_str()));
        readers.extend(relays.into_iter().filter(|reader| run.relays && reader.name == RELAY));
        readers.len() == Group::ALL.len() + usize::from(run.relays)
            && readers.iter().all(|reader| reader.lag_messages == 0)
    }

    /// From 0 to 1, over all four.
    pub(crate) fn fraction(&self) -> f64 {
        let whole = (self.purchases * 4).max(1);
        self.counts.iter().sum::<u64>() as f64 / whole as f64
    }

    /// Why nothing can be expected any more.
    pub(crate) fn stalled(&self) -> Option<String> {
        (self.moved.elapsed() > STALLED_AFTER).then(|| {
            let last = self
                .trouble
                .as_ref()
                .map(|trouble| format!(" (last trouble: {trouble})"));
            format!(
                "nothing has moved for {} s{}",
                STALLED_AFTER.as_secs(),
                last.unwrap_or_default()
            )
        })
    }

    fn rate(&self, place: usize) -> Rate {
        let count = self.counts[place].saturating_sub(self.first.map_or(0, |first| first[place]));
        Rate {
            name: NAMES[place],
            count,
            took: self.done[place].unwrap_or_else(|| self.began.elapsed()),
        }
    }

    fn show(&mut self) {
        if let Some(bars) = &self.bars {
            for (place, bar) in bars.iter().enumerate() {
                bar.set_position(self.counts[place].min(self.purchases));
                bar.set_message(self.rate(place).per_second());
            }
        } else if self.said.elapsed() >= LINES_EVERY {
            self.said = Instant::now();
            let counts = NAMES
                .iter()
                .zip(self.counts)
                .map(|(name, count)| format!("{name} {}", grouped(count)));
            eprintln!(
                "{} of {} each",
                counts.collect::<Vec<_>>().join(", "),
                grouped(self.purchases)
            );
        }
    }

    /// Leaves the bars on the screen as they are, and gives the rates.
    pub(crate) fn close(self) -> Vec<Rate> {
        for bar in self.bars.iter().flatten() {
            bar.abandon();
        }
        (0..NAMES.len()).map(|place| self.rate(place)).collect()
    }
}

impl Rate {
    pub(crate) fn per_second(&self) -> String {
        let seconds = self.took.as_secs_f64();
        let rate = if seconds > 0.0 {
            self.count as f64 / seconds
        } else {
            0.0
        };
        format!("{}/s", grouped(rate.round() as u64))
    }
}

fn bars(purchases: u64) -> Vec<ProgressBar> {
    let style = ProgressStyle::with_template("{prefix:>8} {bar:40} {human_pos:>9} of {human_len} {msg:>10}");
    let style = style
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏ ");
    let together = MultiProgress::new();
    NAMES
        .map(|name| together.add(ProgressBar::new(purchases).with_style(style.clone()).with_prefix(name)))
        .into()
}
