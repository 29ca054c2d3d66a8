//! `eventloom migrate --promoted`: another identity for a log that was restored from a backup, or promoted.

use crate::{
    ask::Consent,
    commands::relays,
    failure::{Exit, Failure},
    open::{With, Work, with_store},
    output::{Output, talk},
    settings::Settings,
};
use eventloom::{StoreErrorKind, ports::Backend};

pub(super) async fn run(consent: Consent, settings: &Settings) -> Result<Exit, Failure> {
    with_store(
        settings,
        With {
            command: consent,
            settings,
        },
    )
    .await
}

impl Work for With<'_, Consent> {
    async fn on<S: Backend>(self, store: S) -> Result<Exit, Failure> {
        let With { command, settings } = self;
        let place = store.place();
        let readers = store.readers(None).await?;
        let relays = relays::among(&store, &readers).await?;
        let running = readers.iter().filter(|reader| relays.contains(&reader.name));
        let running: Vec<&str> = running
            .filter(|reader| reader.lanes.iter().any(|lane| lane.owner.is_some()))
            .map(|reader| reader.name.as_str())
            .collect();
        // It would go on under the former identity, and be found out at its next start.
        if !running.is_empty() {
            return Err(Failure::new(format!("{} is running on {place}", running.join(", ")))
                .next("stop its instances, wait until their lease has ended, and run it again"));
        }
        let before = store.log_status().await?.identity;
        let what = format!("give the log of {place} another identity than {before}");
        if let Some(exit) = command.only_told(&format!("would {what}")) {
            return Ok(exit);
        }
        command.ask(&what)?;
        let identity = store.renew_identity().await.map_err(|error| match error.kind() {
            StoreErrorKind::Refused => {
                Failure::from(error).next("use the role that owns the tables, as for every migration")
            }
            _ => error.into(),
        })?;
        let mut output = Output::new();
        output.line(&identity.to_string())?;
        output.flush()?;
        talk(&format!("{place} has a new identity; it was {before}"));
        match relays.iter().next() {
            Some(relay) => talk(&format!(
                "its relays go on from where they stand; to send more again: {}",
                settings.command(&format!("consumer reset {relay} --to PLACE"))
            )),
            None => talk("it has no relays"),
        }
        Ok(Exit::Done)
    }
}
