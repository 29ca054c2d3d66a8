//! From a place to an open store: the one place where the kinds of store differ for commands that only ask.

use crate::{
    failure::{Exit, Failure},
    place::Place,
    secrets,
    settings::Settings,
};
use eventloom::{
    StoreErrorKind, chain,
    ports::{Backend, Store as _},
    postgres::{self, Postgres},
    sqlite::{self, Sqlite},
};
use sqlx::{
    Connection, PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use std::{future::Future, path::Path, time::Duration};

/// How long a server may take to answer the first connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const CONNECTIONS_MAX: u32 = 3;

/// What a command does with a store, whichever it is.
pub(crate) trait Work {
    fn on<S: Backend>(self, store: S) -> impl Future<Output = Result<Exit, Failure>>;
}

/// A command, and the settings that its advice repeats.
pub(crate) struct With<'a, C> {
    pub(crate) command: C,
    pub(crate) settings: &'a Settings,
}

/// A store was not opened.
#[derive(Debug)]
pub(crate) struct NotOpen {
    pub(crate) failure: Failure,
    /// It may answer later, with nobody doing anything here: a service waits for it, a command fails.
    pub(crate) is_down: bool,
}

impl NotOpen {
    fn for_good(failure: Failure) -> Self {
        NotOpen {
            failure,
            is_down: false,
        }
    }

    fn down(failure: Failure) -> Self {
        NotOpen { failure, is_down: true }
    }
}

impl From<NotOpen> for Failure {
    fn from(error: NotOpen) -> Self {
        error.failure
    }
}

/// Opens the store of the settings, does the work on it, and closes it.
pub(crate) async fn with_store(settings: &Settings, work: impl Work) -> Result<Exit, Failure> {
    match settings.place()? {
        Place::Sqlite(path) => {
            let store = sqlite(&path, CONNECTIONS_MAX, settings).await?;
            let done = work
                .on(store.clone())
                .await
                .map_err(|failure| failure.at(&store.place()).repeating(settings));
            store.close().await;
            done
        }
        Place::Postgres(options) => {
            let (store, pool) = postgres(*options, CONNECTIONS_MAX, settings).await?;
            let done = work
                .on(store.clone())
                .await
                .map_err(|failure| failure.at(&store.place()).repeating(settings));
            close(&pool).await;
            done
        }
    }
}

/// Opens a file that is there.
pub(crate) async fn sqlite(path: &Path, connections: u32, settings: &Settings) -> Result<Sqlite, NotOpen> {
    must_exist(path, settings).map_err(NotOpen::for_good)?;
    let opened = Sqlite::builder(path).connections_max(connections).open().await;
    opened.map_err(|error| {
        let busy = Some(StoreErrorKind::Conflict) == Sqlite::kind_of(&error)
            || Some(StoreErrorKind::Timeout) == Sqlite::kind_of(&error);
        NotOpen {
            failure: sqlite_failure(error, settings),
            is_down: busy,
        }
    })
}

/// Opens a schema of a server, and says by which pool.
pub(crate) async fn postgres(
    options: PgConnectOptions,
    connections: u32,
    settings: &Settings,
) -> Result<(Postgres, PgPool), NotOpen> {
    let place = place_of(&options);
    let pool = connect_with(options, connections).await?;
    let mut builder = Postgres::builder(pool.clone()).schema(settings.schema().clone());
    if settings.pooled {
        builder = builder.pooled();
    }
    match builder.open().await {
        Ok(store) => Ok((store, pool)),
        Err(error) => {
            close(&pool).await;
            let is_down = match &error {
                // It answered a moment ago.
                postgres::OpenError::Unreachable { source, .. } => source.as_database_error().is_none(),
                postgres::OpenError::Store(error) => {
                    matches!(error.kind(), StoreErrorKind::Unreachable | StoreErrorKind::Timeout)
                }
                _ => false,
            };
            Err(NotOpen {
                failure: postgres_failure(error, settings).at(&place),
                is_down,
            })
        }
    }
}

/// Says goodbye to the server, which would otherwise note a lost connection. Not worth waiting for.
pub(crate) async fn close(pool: &PgPool) {
    let _ = tokio::time::timeout(Duration::from_secs(1), pool.close()).await;
}

/// A pool whose server has answered once. A pool alone would go on asking a server that refuses until its time is up.
pub(crate) async fn connect(options: PgConnectOptions) -> Result<PgPool, NotOpen> {
    connect_with(options, CONNECTIONS_MAX).await
}

async fn connect_with(options: PgConnectOptions, connections: u32) -> Result<PgPool, NotOpen> {
    let mut options = options.application_name("eventloom");
    if options.get_database().is_none() {
        options = options.clone().database(options.get_username());
    }
    let place = place_of(&options);
    let unreachable = |why: String| format!("cannot reach Postgres at {place}: {why}");
    match tokio::time::timeout(ANSWER_WITHIN, sqlx::PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => {
            // It has answered, which is all that was asked of it.
            let _ = connection.close().await;
        }
        Ok(Err(error)) => {
            let (why, next) = explain(&error);
            return Err(NotOpen {
                failure: Failure::new(unreachable(why)).next(next),
                is_down: is_down(&error),
            });
        }
        Err(_) => {
            let failure = Failure::new(unreachable(format!("no answer within {ANSWER_WITHIN:?}")));
            return Err(NotOpen::down(
                failure.next("see whether host and port are right and a firewall lets you through"),
            ));
        }
    }
    let pool = PgPoolOptions::new()
        .max_connections(connections)
        .acquire_timeout(ANSWER_WITHIN);
    Ok(pool.connect_lazy_with(options))
}

/// Nobody listens, or it is full, starting or stopping. A wrong password stays wrong.
fn is_down(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) => true,
        sqlx::Error::Database(error) => {
            let code = error.code().unwrap_or_default();
            code == "53300" || code.starts_with("57P") || code.starts_with("08")
        }
        _ => false,
    }
}

/// Host, port and database: everything that tells a server apart, and nothing that is secret.
pub(crate) fn place_of(options: &PgConnectOptions) -> String {
    let database = options.get_database().unwrap_or_else(|| options.get_username());
    match options.get_socket() {
        Some(socket) => format!("{}/{database}", socket.display()),
        None if options.get_host().contains(':') => {
            format!("[{}]:{}/{database}", options.get_host(), options.get_port())
        }
        None => format!("{}:{}/{database}", options.get_host(), options.get_port()),
    }
}

/// Why a first connection failed, and what to do about it.
fn explain(error: &sqlx::Error) -> (String, &'static str) {
    match error {
        sqlx::Error::Io(error) => (
            error.to_string(),
            "see whether the server is up, and host and port are right",
        ),
        sqlx::Error::Database(error) => {
            let next = match error.code().as_deref() {
                Some("28P01" | "28000") => "give the right user and password in the store's URL",
                Some("3D000") => "give a database that is there, or make it with CREATE DATABASE",
                Some("53300") => "wait for a free connection, or raise max_connections",
                Some("57P03") => "wait until the server has started",
                _ => "see what the server's log says",
            };
            (error.message().to_owned(), next)
        }
        sqlx::Error::Tls(error) => (error.to_string(), "set sslmode and sslrootcert in the store's URL"),
        error => (error.to_string(), "see whether this is a Postgres server"),
    }
}

/// Opening makes a missing file, which is right for a service and wrong for a misspelled path.
pub(crate) fn must_exist(path: &Path, settings: &Settings) -> Result<(), Failure> {
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::new(format!(
            "there is no database {}",
            secrets::of_store(&path.to_string_lossy())
        ))
        .next(format!(
            "check the path, or make it with `{}`",
            settings.command("migrate")
        ))),
        Err(error) => Err(Failure::new(format!(
            "cannot look for the database {}: {error}",
            path.display()
        ))),
    }
}

pub(crate) fn sqlite_failure(error: sqlite::OpenError, settings: &Settings) -> Failure {
    use sqlite::OpenError::{NotMigrated, TooNew, TooOld, Unreachable};
    let what = without_advice(&chain(&error).to_string());
    match error {
        NotMigrated { .. } | TooOld { .. } => Failure::new(what).next(settings.command("migrate")),
        TooNew { .. } => Failure::new(what).next("use a newer eventloom"),
        Unreachable { .. } => {
            Failure::new(what).next("see whether the path is right, is a database, and may be written to")
        }
        _ => Failure::new(what),
    }
}

pub(crate) fn postgres_failure(error: postgres::OpenError, settings: &Settings) -> Failure {
    use postgres::OpenError::{NotMigrated, ProgramTooOld, Store, Unreachable};
    let what = without_advice(&chain(&error).to_string());
    match error {
        Store(error) if error.kind() == StoreErrorKind::Refused => {
            let schema = settings.schema();
            let grants = settings.command("migrate --grants");
            Failure::from(error).next(format!(
                "connect to the primary, with a role that was granted {schema}_reader, as `{grants}` prints it; \
                 {schema}_writer may INSERT and nothing else"
            ))
        }
        Store(error) => error.into(),
        NotMigrated { .. } => Failure::new(what).next(settings.command("migrate")),
        ProgramTooOld { .. } => Failure::new(what).next("use a newer eventloom"),
        Unreachable { .. } => Failure::new(what).next("see whether the server is up, then run it again"),
        _ => Failure::new(what),
    }
}

/// The library tells its users to run this program; here the exact command follows on a line of its own.
pub(crate) fn without_advice(text: &str) -> String {
    let what = text.split("run `eventloom migrate`").next().unwrap_or(text);
    what.trim_end_matches([' ', ':', ';', ',']).to_owned()
}
