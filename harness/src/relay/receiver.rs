//! A file that stands for a broker without order of its own: it takes one message of a key at a time, and loses messages or
//! answers when a run says so.

use crate::site::Site;
use eventloom::{
    Envelope,
    ports::{Broker, BrokerError, Capabilities, Fate, Marks, Outgoing, Producer, Source},
};
use std::{
    fs,
    future::{Ready, ready},
    io::Write,
    path::PathBuf,
};

/// The file: a line of delivery id, logical id and key for each message that came.
#[derive(Debug, Clone)]
pub(crate) struct Receiver {
    site: Site,
}

/// The file.
pub(crate) fn file(site: &Site) -> PathBuf {
    site.folder.join("received.tsv")
}

/// There when the next message of a key is to vanish, once.
pub(crate) fn vanish(site: &Site, key: &str) -> PathBuf {
    site.gate(&format!("vanish-{key}"))
}

/// There when the next message of a key is to come and not be confirmed, once.
pub(crate) fn untold(site: &Site, key: &str) -> PathBuf {
    site.gate(&format!("untold-{key}"))
}

impl Receiver {
    pub(crate) fn new(site: &Site) -> Self {
        Receiver { site: site.clone() }
    }

    fn take(&self, source: &Source, outgoing: &Outgoing) -> std::io::Result<Fate> {
        let key = outgoing.key().unwrap_or_default();
        let unknown = || Fate::Unknown("the connection was lost".to_owned());
        if fs::remove_file(vanish(&self.site, key)).is_ok() {
            return Ok(unknown());
        }
        let line = format!(
            "{}\t{}\t{key}\n",
            outgoing.delivery_id(source),
            outgoing.message.envelope.id
        );
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file(&self.site))?;
        file.write_all(line.as_bytes())?;
        match fs::remove_file(untold(&self.site, key)) {
            Ok(()) => Ok(unknown()),
            Err(_) => Ok(Fate::Confirmed),
        }
    }
}

impl Broker for Receiver {
    type Producer = Sending;

    fn place(&self) -> String {
        file(&self.site).display().to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(1 << 20)
    }

    fn check(&self, _message: &Envelope) -> Result<(), String> {
        Ok(())
    }

    async fn producer(&self, source: &Source) -> Result<Sending, BrokerError> {
        Ok(Sending {
            receiver: self.clone(),
            source: source.clone(),
        })
    }
}

/// Its sending side.
pub(crate) struct Sending {
    receiver: Receiver,
    source: Source,
}

impl Producer for Sending {
    type Ticket = Ready<Vec<Fate>>;

    async fn marks(&mut self) -> Result<Option<Marks>, BrokerError> {
        Ok(None)
    }

    async fn submit(&mut self, batch: Vec<Outgoing>) -> Result<Self::Ticket, BrokerError> {
        let take = |outgoing: &Outgoing| {
            let taken = self.receiver.take(&self.source, outgoing);
            taken.unwrap_or_else(|error| Fate::Unknown(error.to_string()))
        };
        Ok(ready(batch.iter().map(take).collect()))
    }
}
