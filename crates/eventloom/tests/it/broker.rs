//! A database as the broker of other services, on both stores.

use crate::folder::Folder;
use eventloom::{
    Database, Envelope, Position,
    ports::{Log, Outbox, ReadLimits, Relays},
    sqlite::{MigrateOptions, Sqlite, migrate},
};
use eventloom_testkit::broker::{BrokerFixture, conformance};
use sqlx::AssertSqlSafe;

async fn arrived<S: Log + Outbox + Relays>(broker: &Database<S>) -> Vec<Envelope> {
    let page = broker.store().read_after(Position::START, ReadLimits::default()).await;
    page.unwrap().rows.into_iter().map(|row| row.envelope).collect()
}

struct Files(Folder);

impl BrokerFixture for Files {
    type Broker = Database<Sqlite>;

    async fn fresh(&self) -> Database<Sqlite> {
        let file = self
            .0
            .database()
            .with_file_name(format!("{}.db", eventloom::Uuid::new_v4()));
        migrate(&file, MigrateOptions::default()).await.unwrap();
        Database::new(Sqlite::connect(&file).await.unwrap())
    }

    async fn arrived(&self, broker: &Database<Sqlite>) -> Vec<Envelope> {
        arrived(broker).await
    }

    async fn refuse(&self, broker: &Database<Sqlite>, event_type: &str) -> bool {
        let refuse = format!(
            "CREATE TRIGGER refuse BEFORE INSERT ON eventloom_outbox WHEN NEW.type = '{event_type}'
             BEGIN SELECT RAISE(ABORT, 'refused'); END"
        );
        let refuse = sqlx::query(AssertSqlSafe(refuse));
        refuse.execute(broker.store().pool()).await.is_ok()
    }
}

#[tokio::test]
async fn a_file_is_a_broker_like_others() {
    let report = conformance(&Files(Folder::new())).await;
    assert!(report.failed.is_empty(), "{report}");
}

#[cfg(feature = "postgres")]
mod on_postgres {
    use super::*;
    use crate::database::with_database;
    use eventloom::{
        SchemaName,
        ports::Store,
        postgres::{self, Postgres},
    };
    use sqlx::PgPool;

    /// A schema for each broker.
    struct Schemas(PgPool);

    impl BrokerFixture for Schemas {
        type Broker = Database<Postgres>;

        async fn fresh(&self) -> Database<Postgres> {
            let schema = SchemaName::parse(format!("broker_{}", eventloom::Uuid::new_v4().simple())).unwrap();
            let options = postgres::MigrateOptions::default().schema(schema.clone());
            postgres::migrate(&self.0, options).await.unwrap();
            let store = Postgres::builder(self.0.clone()).schema(schema).open().await;
            Database::new(store.unwrap())
        }

        async fn arrived(&self, broker: &Database<Postgres>) -> Vec<Envelope> {
            arrived(broker).await
        }

        async fn refuse(&self, broker: &Database<Postgres>, event_type: &str) -> bool {
            let schema = broker.store().tables().schema();
            let refuse = format!("ALTER TABLE {schema}.outbox ADD CHECK (type <> '{event_type}')");
            sqlx::query(AssertSqlSafe(refuse)).execute(&self.0).await.is_ok()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_database_is_a_broker_like_others() {
        with_database("broker on postgres", async |database| {
            let report = conformance(&Schemas(database.pool(4).await)).await;
            assert!(report.failed.is_empty(), "{report}");
        })
        .await;
    }
}
