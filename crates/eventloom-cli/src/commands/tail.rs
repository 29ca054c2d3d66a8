//! `eventloom tail`: events as they come, without registering as a reader.

use crate::{
    event::{EventJson, payload_line},
    failure::{Exit, Failure},
    figures,
    open::{Work, with_store},
    output::{Output, plain, shortened, talk},
    settings::Settings,
    stop::Stop,
    terminal,
};
use eventloom::{
    OffsetDateTime, Position, Recorded, Topic,
    ports::{Backend, Page, ReadError, ReadLimits},
};
use std::{collections::VecDeque, time::Duration};

/// How far back the last events are looked for, in positions.
const LOOK_BACK_FIRST: i64 = 256;
const LOOK_BACK_MOST: i64 = 262_144;
const LAST: usize = 10;
/// Polls after the last row, before the store is asked to wake us.
const POLLS: u32 = 3;
const POLL: Duration = Duration::from_millis(20);
/// How often somebody who closed the pipe is noticed while there is nothing to print.
const DOZE_MOST: Duration = Duration::from_secs(1);
/// Width of the payload where no terminal says how much fits.
const PAYLOAD_CHARACTERS: usize = 200;
/// A key may have 1,024 bytes; `--json` shows it whole.
const KEY_CHARACTERS: usize = 40;
const PAYLOAD_CHARACTERS_MIN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  eventloom tail                              # the last 10 events
  eventloom tail orders payments --follow     # the last 10 of two topics, and what comes
  eventloom tail --since 10m --json | jq .data
  eventloom tail --after 9412000 --limit 100

Looking changes nothing: tail is no reader, moves no cursor and keeps nothing from being pruned.";

/// Print events of the log, and follow it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Only these topics
    #[arg(value_name = "TOPIC", value_parser = |text: &str| Topic::parse(text))]
    topics: Vec<Topic>,
    /// Begin after this position
    #[arg(long, value_name = "POSITION", group = "place")]
    after: Option<i64>,
    /// Begin with the oldest event that is left
    #[arg(long, group = "place")]
    from_start: bool,
    /// Begin with the first event that was inserted then: 2026-11-30T15:14:00Z, 2026-11-30, or how long ago (10m)
    #[arg(long, value_name = "TIME", value_parser = figures::parse_moment, group = "place")]
    since: Option<OffsetDateTime>,
    /// Go on with what comes, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Print each event as a line of JSON, complete
    #[arg(long)]
    json: bool,
    /// Stop after so many events; without a place to begin at: show so many of the last ones (10 unless given)
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
}

pub(crate) async fn run(arguments: Arguments, settings: &Settings) -> Result<Exit, Failure> {
    with_store(settings, arguments).await
}

impl Work for Arguments {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let mut printer = Printer::new(self.json);
        let mut stop = Stop::new()?;
        let following = async {
            let begun = self.begin(&store, &mut printer).await?;
            let exit = self.go_on(&store, &mut printer, begun).await?;
            if !printer.has_printed && !self.follow && self.limit != Some(0) {
                self.say_why_nothing(&store).await?;
            }
            Ok(exit)
        };
        tokio::select! {
            done = following => done,
            () = stop.asked() => Ok(Exit::Done),
        }
    }
}

/// Where reading goes on.
struct Begun {
    after: Position,
    /// Not beyond here, unless the log is followed.
    until: Position,
    left: usize,
}

impl Arguments {
    async fn begin<S: Backend>(&self, store: &S, printer: &mut Printer) -> Result<Begun, Failure> {
        let until = store.horizon().await?.position;
        let left = self.limit.unwrap_or(usize::MAX);
        let after = match (self.after, self.since) {
            (Some(after), _) => {
                // What was pruned is refused here, and passed over later: then it was pruned under our eyes.
                store
                    .read_after(Position(after), ReadLimits::default().rows_max(1))
                    .await?;
                Position(after)
            }
            (_, Some(time)) => store.position_at(time).await?,
            _ if self.from_start => store.log_status().await?.pruned_to,
            _ => {
                let after = self.print_last(store, printer, until).await?;
                let left = if self.follow { usize::MAX } else { 0 };
                return Ok(Begun { after, until, left });
            }
        };
        Ok(Begun { after, until, left })
    }

    async fn go_on<S: Backend>(&self, store: &S, printer: &mut Printer, begun: Begun) -> Result<Exit, Failure> {
        let Begun {
            mut after,
            until,
            mut left,
        } = begun;
        let mut polls = 0;
        while left > 0 && (self.follow || after < until) {
            let page = read(store, after).await?;
            let wanted = page.rows.iter().filter(|row| self.wants(row)).take(left);
            let printed = wanted
                .map(|row| printer.print(row))
                .collect::<Result<Vec<()>, _>>()?
                .len();
            printer.output.flush()?;
            left -= printed;
            polls = if page.rows.is_empty() { polls + 1 } else { 0 };
            after = after.max(page.scanned_to);
            if !self.follow || polls == 0 || left == 0 {
                continue;
            }
            if terminal::is_closed() {
                break;
            }
            if polls == 1 && !printer.has_printed && !printer.has_waited {
                printer.has_waited = true;
                talk(&format!(
                    "nothing{} yet; waiting for what comes, until Ctrl-C",
                    self.of_topics()
                ));
            }
            match polls {
                0..=POLLS => tokio::time::sleep(POLL).await,
                _ => store.doze(after, DOZE_MOST).await?,
            }
        }
        Ok(Exit::Done)
    }

    /// Looks back until enough is found: positions have holes, and other topics lie between.
    async fn print_last<S: Backend>(
        &self,
        store: &S,
        printer: &mut Printer,
        until: Position,
    ) -> Result<Position, Failure> {
        let wanted = self.limit.unwrap_or(LAST);
        let pruned_to = store.log_status().await?.pruned_to;
        let mut look_back = LOOK_BACK_FIRST;
        loop {
            let from = Position((until.0 - look_back).max(pruned_to.0));
            let (mut after, mut last) = (from, VecDeque::new());
            while after < until {
                let page = read(store, after).await?;
                after = after.max(page.scanned_to);
                for row in page.rows.into_iter().filter(|row| self.wants(row)) {
                    last.push_back(row);
                    if last.len() > wanted {
                        last.pop_front();
                    }
                }
            }
            let all = from <= pruned_to;
            if last.len() >= wanted || all || look_back >= LOOK_BACK_MOST {
                if last.len() < wanted && !all {
                    let most = figures::thousands(LOOK_BACK_MOST);
                    talk(&format!(
                        "looked at the last {most} positions alone; --from-start looks at all"
                    ));
                }
                last.iter().try_for_each(|row| printer.print(row))?;
                printer.output.flush()?;
                return Ok(after);
            }
            look_back *= 8;
        }
    }

    async fn say_why_nothing<S: Backend>(&self, store: &S) -> Result<(), Failure> {
        let pruned_to = store.log_status().await?.pruned_to;
        let of = self.of_topics();
        let place = match (self.after, self.since) {
            (None, None) => "",
            _ => " from there on",
        };
        talk(&match (pruned_to.0, of.as_str(), place) {
            (0, "", "") => "the log is empty: nothing was published yet".to_owned(),
            (0, ..) => format!("there is no event{of}{place}"),
            (pruned_to, ..) => format!(
                "there is no event{of}{place}; rows up to {} were pruned, since every reader has passed them. \
                 Services keep them longer with Eventloom::keep_log, relays with --keep-log",
                figures::thousands(pruned_to)
            ),
        });
        Ok(())
    }

    fn of_topics(&self) -> String {
        let topics: Vec<&str> = self.topics.iter().map(Topic::as_str).collect();
        match topics.is_empty() {
            true => String::new(),
            false => format!(" of topic {}", topics.join(", ")),
        }
    }

    fn wants(&self, row: &Recorded) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|topic| topic.as_str() == row.envelope.topic)
    }
}

/// Reads on. Rows that were pruned meanwhile are passed over, and that is said.
async fn read<S: Backend>(store: &S, after: Position) -> Result<Page, Failure> {
    match store.read_after(after, ReadLimits::default()).await {
        Err(ReadError::Pruned { pruned_to, .. }) => {
            talk(&format!(
                "rows up to {pruned_to} were pruned before they could be shown"
            ));
            Ok(store.read_after(pruned_to, ReadLimits::default()).await?)
        }
        page => Ok(page?),
    }
}

/// Prints events in columns that grow with what stands in them.
struct Printer {
    output: Output,
    json: bool,
    terminal: Option<usize>,
    widths: [usize; 4],
    has_printed: bool,
    /// Somebody was told that there is nothing yet.
    has_waited: bool,
}

impl Printer {
    fn new(json: bool) -> Self {
        Printer {
            output: Output::new(),
            json,
            terminal: terminal::width(),
            widths: [6, 0, 0, 0],
            has_printed: false,
            has_waited: false,
        }
    }

    fn print(&mut self, recorded: &Recorded) -> Result<(), Failure> {
        self.has_printed = true;
        if self.json {
            return self.output.json(&EventJson::of(recorded));
        }
        let envelope = &recorded.envelope;
        let cells = [
            recorded.position.to_string(),
            plain(&envelope.topic).into_owned(),
            plain(&envelope.event_type).into_owned(),
            shortened(&plain(envelope.key.as_deref().unwrap_or("-")), KEY_CHARACTERS).into_owned(),
        ];
        for (width, cell) in self.widths.iter_mut().zip(&cells) {
            *width = (*width).max(cell.chars().count());
        }
        let [position, topic, event_type, key] = cells;
        let [w0, w1, w2, w3] = self.widths;
        let time = figures::moment(envelope.time);
        let begin = format!("{position:>w0$}  {time}  {topic:w1$}  {event_type:w2$}  {key:w3$}  ");
        let payload_max = self.terminal.map_or(PAYLOAD_CHARACTERS, |columns| {
            columns
                .saturating_sub(begin.chars().count())
                .max(PAYLOAD_CHARACTERS_MIN)
        });
        let payload = payload_line(envelope.payload.as_ref(), payload_max);
        self.output.line(&format!("{begin}{payload}"))
    }
}
