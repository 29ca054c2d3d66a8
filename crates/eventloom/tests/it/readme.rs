// The README's first example stands here between the markers and is run below; the README holds the same text.
// begin
use eventloom::sqlite::{MigrateOptions, migrate, prelude::*};
use serde::{Deserialize, Serialize};

const ORDERS: Topic = Topic::new("orders");

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.placed")]
struct OrderPlaced {
    #[event(key)] // events of one order are handled in the order of their inserts
    order: String,
}

#[derive(Serialize, Deserialize, Event)]
#[event(type = "order.invoiced")]
struct OrderInvoiced(#[event(key)] String);

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
enum InvoiceError {
    Database(#[from] sqlx::Error),
    Publish(#[from] PublishError),
}
impl Classify for InvoiceError {} // trying again may help

// The row, the event, the inbox entry and the cursor commit together, or not at all.
async fn invoice(placed: OrderPlaced, cx: &mut Context<'_>) -> Result<(), InvoiceError> {
    let insert = sqlx::query("INSERT INTO invoices VALUES (?)").bind(&placed.order);
    insert.execute(cx.connection()).await?;
    cx.publish(ORDERS, &OrderInvoiced(placed.order)).await?;
    Ok(())
}

async fn shop(file: &str, stop: impl Future) -> Result<(), Box<dyn std::error::Error>> {
    migrate(file, MigrateOptions::default()).await?;
    let store = Sqlite::connect(file).await?;
    let invoicing = Consumer::new("invoicing").topic(ORDERS).handle(invoice);
    let service = Eventloom::new(store.clone()).consumer(invoicing).start().await?;

    let order = "order-17".to_owned();
    let mut tx = store.begin_write().await?; // your row and the event, in one transaction
    let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(&order);
    insert.execute(&mut *tx).await?;
    publish(&mut *tx, ORDERS, &OrderPlaced { order }).await?;
    tx.commit().await?;

    stop.await;
    Ok(service.shutdown(std::time::Duration::from_secs(30)).await?)
}
// end

use crate::folder::{Folder, until};
use eventloom::{Position, ports::Log};
use sqlx::{Connection, SqliteConnection};

const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md");
const LINES_MAX: usize = 40;

/// What stands between a line that begins with `first` and one that is `last`.
fn between(text: &str, first: &str, last: &str) -> String {
    let lines = text.lines().skip_while(|line| *line != first).skip(1);
    lines
        .take_while(|line| *line != last)
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn the_readme_shows_what_is_run_here() {
    let shown = between(&std::fs::read_to_string(README).unwrap(), "```rust", "```");
    assert_eq!(shown, between(include_str!("readme.rs"), "// begin", "// end"));
    let lines = shown.lines().filter(|line| !line.is_empty()).count();
    assert!(
        (1..=LINES_MAX).contains(&lines),
        "{lines} lines are not a first example"
    );
}

#[tokio::test]
async fn the_first_example_does_what_it_says() {
    let folder = Folder::new();
    let file = folder.database();
    let file = file.to_str().unwrap();
    let url = format!("sqlite://{file}?mode=rwc");
    let mut own = SqliteConnection::connect(&url).await.unwrap();
    let tables = "CREATE TABLE orders (id TEXT); CREATE TABLE invoices (order_id TEXT)";
    sqlx::raw_sql(tables).execute(&mut own).await.unwrap();

    let invoices = "SELECT order_id FROM invoices";
    let written = async {
        let look = async || sqlx::query(invoices).fetch_optional(&mut own).await.unwrap();
        until("the invoice", look).await
    };
    shop(file, written).await.unwrap();

    let rows: Vec<String> = sqlx::query_scalar(invoices).fetch_all(&mut own).await.unwrap();
    assert_eq!(rows, ["order-17"], "one order, one invoice");
    let log = Sqlite::connect(file).await.unwrap().log_status().await.unwrap();
    assert_eq!(log.head, Position(2), "the order, and what its handler published");
}
