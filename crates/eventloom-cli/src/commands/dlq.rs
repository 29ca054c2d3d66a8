//! `eventloom dlq …`: messages that were set aside; looked at, sent again, given up.

mod change;
mod look;

use crate::{
    failure::{Exit, Failure},
    open::{With, with_store},
    settings::Settings,
};
use eventloom::{ConsumerName, DeadLetter, LetterFilter, Uuid, ports::Backend};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    List(look::List),
    Show(look::Show),
    Redrive(change::Redriving),
    Delete(change::Deleting),
}

pub(crate) async fn run(verb: Verb, settings: &Settings) -> Result<Exit, Failure> {
    match verb {
        Verb::List(list) => with_store(settings, look::Listing { list, settings }).await,
        Verb::Show(command) => with_store(settings, With { command, settings }).await,
        Verb::Redrive(command) => with_store(settings, With { command, settings }).await,
        Verb::Delete(command) => with_store(settings, With { command, settings }).await,
    }
}

/// Letters asked for at once.
const PAGE: u32 = 500;

/// Letters page by page, at most `limit`; and whether there are more.
async fn letters<S: Backend>(
    store: &S,
    mut filter: LetterFilter,
    limit: usize,
) -> Result<(Vec<DeadLetter>, bool), Failure> {
    let mut letters = Vec::new();
    loop {
        // One more than wanted says whether there are more.
        let wanted = (limit + 1).saturating_sub(letters.len()).min(PAGE as usize) as u32;
        filter.limit = Some(wanted);
        let page = store.letters(&filter).await?;
        let last = page
            .last()
            .map(|letter| (letter.consumer.clone(), letter.message.envelope.id.clone()));
        let full = page.len() >= wanted as usize;
        letters.extend(page);
        if !full || last.is_none() || letters.len() > limit {
            let more = letters.len() > limit;
            letters.truncate(limit);
            return Ok((letters, more));
        }
        filter.after = last;
    }
}

fn consumer(text: &str) -> Result<ConsumerName, String> {
    ConsumerName::parse(text).map_err(|error| error.to_string())
}

/// A consumer that is followed by ids.
fn consumer_before_ids(text: &str) -> Result<ConsumerName, String> {
    match Uuid::try_parse(text) {
        Ok(_) => Err("this is an id, so the order is swapped: the consumer comes first, ids behind it".to_owned()),
        Err(_) => consumer(text),
    }
}
