//! What a relay says while it runs: one line on a terminal, a line of the log now and then elsewhere, or lines of JSON.

use crate::{
    failure::{Exit, Failure},
    figures::{age, bounded, counted, rfc3339, thousands},
    output::{Output, plain, shortened, talk},
    secrets,
    settings::RelaySettings,
    terminal,
};
use eventloom::{
    ConsumerHealth, ConsumerName, Health, OffsetDateTime,
    ports::{Backend, ReaderStatus},
};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal, Write},
    time::{Duration, Instant},
};

const EVERY_ON_A_TERMINAL: Duration = Duration::from_secs(1);
const EVERY_ELSEWHERE: Duration = Duration::from_secs(30);
/// How soon trouble is noticed where reports are rare.
const LOOK_MOST: Duration = Duration::from_secs(2);
/// Counting what lies behind reads the log, so it is not done more often than this.
const LAG_EVERY: Duration = Duration::from_millis(500);
const LAG_WITHIN: Duration = Duration::from_secs(2);
const TROUBLE_CHARACTERS: usize = 300;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Terminal,
    Lines,
    Json,
    Quiet,
}

/// The reports of one relay.
pub(crate) struct Report {
    relay: String,
    form: Form,
    every: Duration,
    begun: Instant,
    /// When something was last reported, and what was confirmed by then.
    last: (Instant, u64),
    /// The last count of what lies behind.
    standing: Option<(Instant, ReaderStatus)>,
    /// What was last said to be wrong, so that it is said once.
    said: Option<String>,
    is_down: bool,
    /// A line stands on the terminal that the next one is to replace.
    is_drawn: bool,
}

impl Report {
    pub(crate) fn new(relay: &ConsumerName, json: bool, quiet: bool, every: Option<Duration>) -> Self {
        let form = match (json, quiet) {
            (true, _) => Form::Json,
            (_, true) => Form::Quiet,
            _ if io::stderr().is_terminal() => Form::Terminal,
            _ => Form::Lines,
        };
        let usual = match form {
            Form::Terminal => EVERY_ON_A_TERMINAL,
            _ => EVERY_ELSEWHERE,
        };
        let least = Duration::from_millis(100);
        Report {
            relay: relay.to_string(),
            form,
            every: every.unwrap_or(usual).max(least),
            begun: Instant::now(),
            last: (Instant::now(), 0),
            standing: None,
            said: None,
            is_down: false,
            is_drawn: false,
        }
    }

    /// How often to look, which is not how often something is said.
    pub(crate) fn look_every(&self) -> Duration {
        self.every.min(LOOK_MOST)
    }

    /// A database that is down is waited for. Said once for each reason.
    pub(crate) fn waiting(&mut self, which: &str, why: &str) -> Result<(), Failure> {
        if self.said.as_deref() == Some(why) {
            return Ok(());
        }
        self.said = Some(why.to_owned());
        self.is_down = which == "target";
        let text = format!("waiting for the {which}: {why}");
        self.event("waiting", json!({ "for": which, "why": why }), &text, true)
    }

    pub(crate) fn started(&mut self, source: &str, target: &str, wanted: &RelaySettings) -> Result<(), Failure> {
        self.begun = Instant::now();
        self.last = (self.begun, 0);
        let topics: Vec<&str> = wanted.topics.iter().map(|topic| topic.as_str()).collect();
        let of = match topics.is_empty() {
            true => "all topics".to_owned(),
            false => format!("topics {}", topics.join(", ")),
        };
        let nowhere = match target {
            "null:" => ", which confirms everything and throws it away",
            _ => "",
        };
        let text = format!("relay {}: {of} of {source} to {target}{nowhere}", self.relay);
        let fields = json!({ "source": source, "target": target, "topics": topics, "throws_away": target == "null:" });
        self.event("started", fields, &text, false)
    }

    /// Looks, and says what is new, or what it is time for.
    pub(crate) async fn look<S: Backend>(&mut self, confirmed: u64, health: &Health, store: &S) -> Result<(), Failure> {
        let Some(relay) = health.consumers.first() else {
            return Ok(());
        };
        self.say_trouble(health, relay)?;
        let (last, before) = self.last;
        let is_time = last.elapsed() >= self.every;
        // Where nobody looks at a screen, standing still is no news; programs want to know that it is alive.
        let is_news = confirmed > before || self.is_down || self.form != Form::Lines;
        if !is_time || !is_news || self.form == Form::Quiet {
            return Ok(());
        }
        let rate = (confirmed - before) as f64 / last.elapsed().as_secs_f64();
        self.last = (Instant::now(), confirmed);
        self.stand(store).await;
        let text = self.line(confirmed, rate, relay);
        match self.form {
            Form::Terminal => self.draw(&text),
            _ => {
                let fields = self.fields(confirmed, rate, health, relay);
                self.event("progress", fields, &text, false)
            }
        }
    }

    /// Nothing is sent until somebody has looked. The failure of the command says why.
    pub(crate) fn alarm(&mut self, why: &str) -> Result<(), Failure> {
        match self.form {
            Form::Json => self.event("alarm", json!({ "why": why }), "", true),
            _ => Ok(()),
        }
    }

    /// It was asked to stop while it waited.
    pub(crate) fn stopped_early(&mut self) -> Result<Exit, Failure> {
        let fields = json!({ "relayed": 0, "drained": true });
        self.event("stopped", fields, "stopped; nothing was relayed", false)?;
        Ok(Exit::Done)
    }

    /// What it did.
    pub(crate) async fn stopped<S: Backend>(
        &mut self,
        confirmed: u64,
        store: &S,
        undone: Option<&String>,
    ) -> Result<(), Failure> {
        self.standing = None;
        self.stand(store).await;
        let status = self.standing.as_ref().map(|(_, status)| status);
        let left = match status {
            Some(status) => format!(
                "; {} left, {} held, {}",
                bounded(status.lag_messages),
                bounded(status.waiting),
                counted(status.dead, "dead letter")
            ),
            None => String::new(),
        };
        let relayed = counted_exactly(confirmed);
        let mut text = format!("stopped: relayed {relayed} in {}{left}", age(self.begun.elapsed()));
        if let Some(undone) = undone {
            text += &format!("; {undone}");
        }
        let fields = json!({
            "relayed": confirmed,
            "seconds": self.begun.elapsed().as_secs_f64(),
            "lag_messages": status.map(|status| status.lag_messages),
            "waiting": status.map(|status| status.waiting),
            "dead": status.map(|status| status.dead),
            "drained": undone.is_none(),
        });
        self.event("stopped", fields, &text, undone.is_some())
    }

    fn say_trouble(&mut self, health: &Health, relay: &ConsumerHealth) -> Result<(), Failure> {
        let is_down = relay.outage;
        if is_down || relay.dropped || !health.store_reachable {
            let trouble = relay.trouble.as_ref().map(|(_, text)| text.as_str());
            let why = match (health.store_reachable, relay.dropped) {
                (false, _) => "the source does not answer",
                (true, true) => "this relay was dropped, and relays nothing; start it anew to register it again",
                (true, false) => trouble.unwrap_or("the broker takes nothing"),
            };
            if self.said.as_deref() != Some(why) {
                self.said = Some(why.to_owned());
                let text = format!("trouble: {}", shortened(&plain(why), TROUBLE_CHARACTERS));
                self.event("trouble", json!({ "why": why }), &text, true)?;
            }
        } else if self.said.is_some() && (!self.is_down || relay.handled > 0) {
            self.said = None;
            self.event("recovered", json!({}), "it goes on", false)?;
        } else {
            return Ok(());
        }
        self.is_down = is_down || !health.store_reachable;
        Ok(())
    }

    /// Counts what lies behind, when that is some time ago.
    async fn stand<S: Backend>(&mut self, store: &S) {
        if self.standing.as_ref().is_some_and(|(at, _)| at.elapsed() < LAG_EVERY) {
            return;
        }
        // A source that does not answer is told as trouble; the count is left out.
        self.standing = match tokio::time::timeout(LAG_WITHIN, store.readers(None)).await {
            Ok(Ok(readers)) => readers.into_iter().find(|reader| reader.name == self.relay),
            _ => None,
        }
        .map(|status| (Instant::now(), status));
    }

    fn line(&self, confirmed: u64, rate: f64, relay: &ConsumerHealth) -> String {
        let mut line = format!(
            "relayed {}   {}/s",
            thousands(confirmed),
            thousands(rate.round() as i128)
        );
        if let Some((_, status)) = &self.standing {
            line += &format!("   lag {}", bounded(status.lag_messages));
            if let Some(oldest) = status.oldest {
                line += &format!(" (oldest {})", age(oldest));
            }
            if status.waiting + status.held_keys > 0 {
                line += &format!("   held {}", bounded(status.waiting));
            }
            if status.dead > 0 {
                line += &format!("   dead {}", bounded(status.dead));
            }
        }
        if relay.instances > 1 {
            line += &format!("   {} instances", relay.instances);
        }
        line += match (relay.dropped, self.is_down, relay.paused) {
            (true, ..) => "   dropped",
            (_, true, _) => "   waiting",
            (.., true) => "   paused",
            _ => "",
        };
        line
    }

    fn fields(&self, confirmed: u64, rate: f64, health: &Health, relay: &ConsumerHealth) -> Value {
        let status = self.standing.as_ref().map(|(_, status)| status);
        json!({
            "relayed": confirmed,
            "rate_per_second": rate,
            "lag_messages": status.map(|status| status.lag_messages),
            "oldest_seconds": status.and_then(|status| status.oldest).map(|oldest| oldest.as_secs_f64()),
            "held_keys": status.map(|status| status.held_keys),
            "waiting": status.map(|status| status.waiting),
            "dead": status.map(|status| status.dead),
            "failures": relay.failures,
            "lanes": relay.lanes,
            "instances": relay.instances,
            "paused": relay.paused,
            "dropped": relay.dropped,
            "source_reachable": health.store_reachable,
            "target_takes_messages": !relay.outage,
        })
    }

    /// Says something that stays.
    fn event(&mut self, event: &str, mut fields: Value, text: &str, is_wrong: bool) -> Result<(), Failure> {
        match self.form {
            Form::Json => {
                let time = rfc3339(OffsetDateTime::now_utc());
                if let Value::Object(fields) = &mut fields {
                    fields.insert("event".to_owned(), event.into());
                    fields.insert("relay".to_owned(), self.relay.as_str().into());
                    fields.insert("time".to_owned(), time.into());
                }
                let mut output = Output::new();
                output.json(&fields)?;
                output.flush()
            }
            Form::Quiet if !is_wrong => Ok(()),
            _ => {
                self.wipe();
                talk(text);
                Ok(())
            }
        }
    }

    /// Replaces the line on the terminal.
    fn draw(&mut self, text: &str) -> Result<(), Failure> {
        let width = terminal::width().unwrap_or(80).saturating_sub(1);
        let text = secrets::without_passwords(text);
        // Whoever closed stderr does not want to see.
        let _ = write!(io::stderr(), "\r\x1b[2K{}", shortened(&text, width));
        self.is_drawn = true;
        Ok(())
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

fn counted_exactly(messages: u64) -> String {
    let plural = if messages == 1 { "" } else { "s" };
    format!("{} message{plural}", thousands(messages))
}
