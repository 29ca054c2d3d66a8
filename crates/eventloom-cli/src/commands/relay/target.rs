//! The target of a relay: a database that is opened when it is first needed, so that it may be down until then.

use crate::{
    failure::Failure,
    open::{self, NotOpen},
    place::Place,
    settings::{RelaySettings, Settings},
};
use eventloom::{
    Database, Envelope, PublishLimits,
    ports::{Broker, BrokerError, Capabilities, Log, Outbox, Relays, Source},
    postgres::Postgres,
    sqlite::Sqlite,
};
use sqlx::postgres::PgConnectOptions;
use std::{future::Future, path::PathBuf, sync::Arc};
use tokio::sync::OnceCell;

/// Where a relay leads.
pub(crate) enum Target {
    Null,
    Sqlite(Lazy<SqliteTarget>),
    Postgres(Lazy<PostgresTarget>),
}

impl Target {
    /// Reads where it leads. Nothing is opened.
    pub(crate) fn of(wanted: &RelaySettings, source: &Settings) -> Result<Target, Failure> {
        if wanted.to == "null:" {
            return Ok(Target::Null);
        }
        let settings = Settings::of_other(&wanted.to, wanted.to_schema.as_ref(), wanted.to_pooled);
        // One for each batch at once, one that opens producers.
        let connections = wanted.in_flight + 1;
        let target = settings.place().map_err(|failure| failure.of_which("the target"))?;
        refuse_the_same(&source.place()?, source, &target, &settings)?;
        Ok(match target {
            Place::Sqlite(path) => Target::Sqlite(Lazy::new(SqliteTarget {
                path,
                connections,
                settings,
            })),
            Place::Postgres(options) => Target::Postgres(Lazy::new(PostgresTarget {
                options: *options,
                connections,
                settings,
            })),
        })
    }
}

/// Where it is plain to see; the library compares identities when it connects.
fn refuse_the_same(
    source: &Place,
    source_settings: &Settings,
    target: &Place,
    target_settings: &Settings,
) -> Result<(), Failure> {
    let same = match (source, target) {
        (Place::Sqlite(source), Place::Sqlite(target)) => {
            let real = |path: &PathBuf| path.canonicalize().unwrap_or_else(|_| path.clone());
            real(source) == real(target)
        }
        (Place::Postgres(source), Place::Postgres(target)) => {
            let schemas = source_settings.schema() == target_settings.schema();
            schemas && open::place_of(source) == open::place_of(target)
        }
        _ => false,
    };
    match same {
        true => Err(Failure::usage("source and target are the same database")
            .next("leave the relay out: consumers of this database follow its log without one")),
        false => Ok(()),
    }
}

/// A kind of target, and how it is opened.
pub(crate) trait Opens: Send + Sync + 'static {
    type Store: Relays + Log + Outbox;
    fn place(&self) -> String;
    fn open(&self) -> impl Future<Output = Result<Self::Store, NotOpen>> + Send;
}

/// A file.
pub(crate) struct SqliteTarget {
    path: PathBuf,
    connections: u32,
    settings: Settings,
}

impl Opens for SqliteTarget {
    type Store = Sqlite;

    fn place(&self) -> String {
        self.path.display().to_string()
    }

    async fn open(&self) -> Result<Sqlite, NotOpen> {
        open::sqlite(&self.path, self.connections, &self.settings).await
    }
}

/// A schema of a server.
pub(crate) struct PostgresTarget {
    options: PgConnectOptions,
    connections: u32,
    settings: Settings,
}

impl Opens for PostgresTarget {
    type Store = Postgres;

    fn place(&self) -> String {
        open::place_of(&self.options)
    }

    async fn open(&self) -> Result<Postgres, NotOpen> {
        let opened = open::postgres(self.options.clone(), self.connections, &self.settings).await;
        opened.map(|(store, _)| store)
    }
}

/// A target that is opened once, when it is there.
pub(crate) struct Lazy<O: Opens> {
    opens: Arc<O>,
    opened: Arc<OnceCell<Database<O::Store>>>,
}

impl<O: Opens> Clone for Lazy<O> {
    fn clone(&self) -> Self {
        Lazy {
            opens: self.opens.clone(),
            opened: self.opened.clone(),
        }
    }
}

impl<O: Opens> Lazy<O> {
    fn new(opens: O) -> Self {
        Lazy {
            opens: Arc::new(opens),
            opened: Arc::default(),
        }
    }

    /// Opens it now, unless it is open.
    pub(crate) async fn open(&self) -> Result<&Database<O::Store>, NotOpen> {
        let opening = || async { self.opens.open().await.map(Database::new) };
        self.opened.get_or_try_init(opening).await
    }
}

impl<O: Opens> Broker for Lazy<O> {
    type Producer = <Database<O::Store> as Broker>::Producer;

    fn place(&self) -> String {
        self.opens.place()
    }

    /// Those of a database, which it is not needed for: they rest on limits that are the same for every store opened here.
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(PublishLimits::default().payload_bytes_max as u64)
            .pipelines(true)
            .marks(true)
    }

    fn check(&self, message: &Envelope) -> Result<(), String> {
        match self.opened.get() {
            Some(database) => database.check(message),
            // The relay itself refuses what is larger than the capabilities say.
            None => Ok(()),
        }
    }

    async fn producer(&self, source: &Source) -> Result<Self::Producer, BrokerError> {
        match self.open().await {
            Ok(database) => database.producer(source).await,
            Err(error) if error.is_down => Err(BrokerError::Unreachable(error.failure.in_one_line())),
            Err(error) => Err(BrokerError::Refused(error.failure.in_one_line())),
        }
    }
}
