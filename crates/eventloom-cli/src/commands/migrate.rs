//! `eventloom migrate`: makes the tables or brings them up to date, and prints what it would run.

mod promoted;

use crate::{
    ask::Consent,
    failure::{Exit, Failure},
    figures, open,
    output::{Output, talk},
    place::{Kind, Place},
    settings::Settings,
};
use eventloom::{
    LaneCount, StoreErrorKind,
    ports::Store,
    postgres::{self, Postgres},
    sqlite::{self, Sqlite},
};
use sqlx::{PgPool, postgres::PgConnectOptions};
use std::{path::Path, time::Duration};

/// So that a migration never queues for long in front of a service.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

const EXAMPLES: &str = "\
Examples:
  eventloom migrate --store sqlite://shop.db
  eventloom migrate --store postgres://owner@db.internal/shop --schema shop_events --lanes 128
  eventloom migrate --store postgres:// --print-sql > 0001_eventloom.sql
  eventloom migrate --store postgres:// --grants | psql shop
  eventloom migrate --store shop.db --promoted

Nothing but this command changes tables. Steps are additive: services of the
version before go on running while a newer one is deployed. It can be run again,
and by several at once.";

/// Make Eventloom's tables, or bring them up to date
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Number of lanes of new tables, 1 to 16,384: the most that a consumer does at once. 64 unless said otherwise;
    /// it cannot be changed after the first migration
    #[arg(long, value_name = "N", value_parser = lanes)]
    lanes: Option<LaneCount>,
    /// How long a step waits for a lock; 5s unless said otherwise. On Postgres it lets others pass then, and tries four
    /// times more [env: EVENTLOOM_LOCK_TIMEOUT]
    #[arg(long, value_name = "DURATION", value_parser = figures::parse_duration)]
    lock_timeout: Option<Duration>,
    /// Print the SQL of all steps to stdout, for another migration tool; connects to nothing
    #[arg(long, conflicts_with_all = ["grants", "dry_run"])]
    print_sql: bool,
    /// Print the roles of Postgres (writer, reader, operator) and their rights to stdout; connects to nothing
    #[arg(long, conflicts_with_all = ["dry_run", "lanes"])]
    grants: bool,
    /// Give the log a new identity, after it was restored from a backup or a replica was promoted: what comes now is not
    /// taken for what came before. Stop its relays first; it asks
    #[arg(long, conflicts_with_all = ["lanes", "lock_timeout", "print_sql", "grants"])]
    promoted: bool,
    #[command(flatten)]
    consent: Consent,
}

fn lanes(text: &str) -> Result<LaneCount, String> {
    let count = text.parse().ok().and_then(LaneCount::new);
    count.ok_or_else(|| format!("a log has 1 to {} lanes", figures::thousands(LaneCount::MAX)))
}

pub(crate) async fn run(arguments: Arguments, settings: &Settings) -> Result<Exit, Failure> {
    if arguments.print_sql || arguments.grants {
        return print(&arguments, settings);
    }
    if arguments.promoted {
        return promoted::run(arguments.consent, settings).await;
    }
    let lock_timeout = arguments.lock_timeout.or(settings.lock_timeout).unwrap_or(LOCK_TIMEOUT);
    match settings.place()? {
        Place::Sqlite(path) => on_sqlite(&path, lock_timeout, &arguments, settings).await,
        Place::Postgres(options) => on_postgres(*options, lock_timeout, &arguments, settings).await,
    }
}

fn print(arguments: &Arguments, settings: &Settings) -> Result<Exit, Failure> {
    let lanes = arguments.lanes.unwrap_or_default();
    let sql = match (settings.kind()?, arguments.grants) {
        (Kind::Postgres, false) => postgres::migration_sql(settings.schema(), lanes),
        (Kind::Postgres, true) => postgres::grants_sql(settings.schema()),
        (Kind::Sqlite, false) => sqlite::migration_sql(lanes),
        (Kind::Sqlite, true) => {
            return Err(
                Failure::usage("SQLite has no roles: who may open the file may do everything")
                    .next("leave --grants out, or name a store on Postgres"),
            );
        }
    };
    let mut output = Output::new();
    output.line(&sql)?;
    output.flush()?;
    Ok(Exit::Done)
}

async fn on_sqlite(
    path: &Path,
    lock_timeout: Duration,
    arguments: &Arguments,
    settings: &Settings,
) -> Result<Exit, Failure> {
    let open = || Sqlite::builder(path).connections_max(1).open();
    if arguments.consent.dry_run {
        use sqlite::OpenError::{NotMigrated, TooOld};
        if !path.exists() {
            return missing(&format!("there is no database {}", path.display()));
        }
        return match open().await {
            Ok(store) => current(&store.place(), &store),
            Err(error @ (NotMigrated { .. } | TooOld { .. })) => missing(&error.to_string()),
            Err(error) => Err(open::sqlite_failure(error, settings)),
        };
    }
    let mut options = sqlite::MigrateOptions::default().lock_timeout(lock_timeout);
    options.lanes = arguments.lanes;
    let migrated = sqlite::migrate(path, options).await.map_err(|error| match error {
        sqlite::MigrateError::Open(error) => open::sqlite_failure(error, settings),
        error @ sqlite::MigrateError::Lanes { .. } => Failure::of(&error).next(without_lanes(settings)),
        error => Failure::of(&error),
    })?;
    // What was made is opened, as a service would: it answers for itself.
    let store = open().await.map_err(|error| open::sqlite_failure(error, settings))?;
    let done = report(&store.place(), &store, (migrated.from, migrated.to), &migrated.applied);
    store.close().await;
    done
}

async fn on_postgres(
    options: PgConnectOptions,
    lock_timeout: Duration,
    arguments: &Arguments,
    settings: &Settings,
) -> Result<Exit, Failure> {
    let pool = open::connect(options).await?;
    let done = on_pool(&pool, lock_timeout, arguments, settings).await;
    open::close(&pool).await;
    done
}

async fn on_pool(
    pool: &PgPool,
    lock_timeout: Duration,
    arguments: &Arguments,
    settings: &Settings,
) -> Result<Exit, Failure> {
    let schema = settings.schema().clone();
    let mut builder = Postgres::builder(pool.clone()).schema(schema.clone());
    if settings.pooled {
        builder = builder.pooled();
    }
    if arguments.consent.dry_run {
        return match builder.open().await {
            Ok(store) => current(&named(&store, settings), &store),
            Err(error @ postgres::OpenError::NotMigrated { .. }) => missing(&error.to_string()),
            Err(error) => Err(open::postgres_failure(error, settings)),
        };
    }
    let mut options = postgres::MigrateOptions::default()
        .schema(schema)
        .lock_timeout(lock_timeout);
    options.lanes = arguments.lanes;
    let migrated = postgres::migrate(pool, options).await.map_err(|error| match error {
        postgres::MigrateError::Store { step, source } if source.kind() == StoreErrorKind::Refused => {
            Failure::from(source).at(&format!("step {step}")).next(
                "use a role that may make schemas and tables here, or hand what --print-sql prints to one that may",
            )
        }
        postgres::MigrateError::Store { step, source } => Failure::from(source).at(&format!("step {step}")),
        error @ postgres::MigrateError::Lanes { .. } => Failure::of(&error).next(without_lanes(settings)),
        error => Failure::of(&error),
    })?;
    // What was made is opened, as a service would: it answers for itself.
    let store = builder
        .open()
        .await
        .map_err(|error| open::postgres_failure(error, settings))?;
    let place = named(&store, settings);
    report(&place, &store, (migrated.from, migrated.to), &migrated.applied)
}

fn without_lanes(settings: &Settings) -> String {
    format!("leave --lanes out: {}", settings.command("migrate"))
}

fn named(store: &Postgres, settings: &Settings) -> String {
    format!("schema {} at {}", settings.schema(), store.place())
}

fn missing(what: &str) -> Result<Exit, Failure> {
    let what = open::without_advice(what);
    talk(&format!(
        "dry run: {what}; the missing steps would be applied; nothing was changed"
    ));
    Ok(Exit::Done)
}

fn current(place: &str, store: &impl Store) -> Result<Exit, Failure> {
    let lanes = store.lanes().get();
    talk(&format!(
        "dry run: {place} is current, with {lanes} lanes; there is nothing to apply"
    ));
    Ok(Exit::Done)
}

fn report(place: &str, store: &impl Store, (from, to): (i32, i32), applied: &[&str]) -> Result<Exit, Failure> {
    let lanes = store.lanes().get();
    let mut output = Output::new();
    if applied.is_empty() {
        output.line(&format!("{place} is current: version {to}, {lanes} lanes"))?;
    } else {
        let steps = applied.join(", ");
        output.line(&format!(
            "{place} is migrated: version {from} to {to} ({steps}), {lanes} lanes"
        ))?;
    }
    output.flush()?;
    Ok(Exit::Done)
}
