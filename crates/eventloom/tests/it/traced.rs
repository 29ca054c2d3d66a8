//! Spans and the contexts in rows, as an exporter of OpenTelemetry gets them: publish -> relay -> handler, linked across
//! two databases.

use crate::folder::{Folder, until};
use crate::order::Placed;
use eventloom::{NewEvent, sqlite::prelude::*};
use opentelemetry::trace::{SpanKind, Status, TracerProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde::{Deserialize, Serialize};
use std::{sync::LazyLock, time::Duration};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

const ORDERS: Topic = Topic::new("orders-over-two");
const INVOICES: Topic = Topic::new("invoices-over-two");
const FOREIGN_ORDERS: Topic = Topic::new("orders-with-context");
const ALONE: Topic = Topic::new("orders-alone");
const REFUSED: Topic = Topic::new("orders-refused");
const FOREIGN: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

#[derive(Serialize, Deserialize)]
struct Invoiced(String);

impl Event for Invoiced {
    const TYPE: &'static str = "order.invoiced";
}

#[derive(Debug, thiserror::Error)]
#[error("no such order")]
struct NoSuchOrder;

impl Classify for NoSuchOrder {
    fn retry_class(&self) -> RetryClass {
        RetryClass::Permanent
    }
}

async fn invoice(placed: Placed, cx: &mut Context<'_>) -> Result<(), PublishError> {
    cx.publish(INVOICES, &Invoiced(placed.0)).await?;
    Ok(())
}

async fn mail(_: Invoiced, _: &mut Context<'_>) -> Result<(), PublishError> {
    Ok(())
}

async fn refuse(_: Placed, _: &mut Context<'_>) -> Result<(), NoSuchOrder> {
    Err(NoSuchOrder)
}

/// Spans of this process that have ended. The subscriber is the process's: drivers close spans on threads of their own,
/// where one of a thread would not be found. So each test has topics of its own.
fn traces() -> &'static InMemorySpanExporter {
    static TRACES: LazyLock<(InMemorySpanExporter, SdkTracerProvider)> = LazyLock::new(|| {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone());
        let provider = provider.build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer)).unwrap();
        (exporter, provider)
    });
    &TRACES.0
}

async fn ended(name: &str) -> SpanData {
    until(name, async || {
        let spans = traces().get_finished_spans().unwrap();
        spans.into_iter().find(|span| span.name == name)
    })
    .await
}

fn context(span: &SpanData) -> String {
    let context = &span.span_context;
    format!("00-{}-{}-01", context.trace_id(), context.span_id())
}

fn links(span: &SpanData) -> Vec<String> {
    let links = span.links.iter().map(|link| &link.span_context);
    links
        .map(|link| format!("00-{}-{}-01", link.trace_id(), link.span_id()))
        .collect()
}

fn attribute(span: &SpanData, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
    found.map(|attribute| attribute.value.to_string())
}

/// A root of its own, of this kind, linked to these contexts.
fn check_linked(span: &SpanData, kind: SpanKind, expected: &[String]) {
    assert_eq!(span.span_kind, kind, "{}", span.name);
    assert_eq!(
        span.parent_span_id,
        opentelemetry::trace::SpanId::INVALID,
        "{}",
        span.name
    );
    assert_eq!(links(span), expected, "{}", span.name);
    assert_eq!(
        attribute(span, "messaging.system").as_deref(),
        Some("eventloom"),
        "{}",
        span.name
    );
}

async fn contexts_in_rows(store: &Sqlite, topic: &str) -> Vec<Option<String>> {
    let rows = sqlx::query_scalar("SELECT traceparent FROM eventloom_outbox WHERE topic = ? ORDER BY position");
    rows.bind(topic).fetch_all(store.pool()).await.unwrap()
}

#[tokio::test]
async fn a_message_is_followed_over_two_databases() {
    traces();
    let (here, there) = (Folder::new(), Folder::new());
    let (shop, books) = (here.store().await, there.store().await);
    let request = async {
        let mut tx = shop.begin_write().await.unwrap();
        publish(&mut *tx, ORDERS, &Placed("order-17".to_owned())).await.unwrap();
        tx.commit().await.unwrap();
    };
    request.instrument(tracing::info_span!("place order")).await;
    let keep = Some(Duration::from_secs(3600));
    let relaying = Eventloom::new(shop.clone())
        .relay(Relay::new("to-books", Database::new(books.clone())))
        .keep_log(keep);
    let relaying = relaying.start().await.unwrap();
    let handling = Eventloom::new(books.clone())
        .consumer(Consumer::new("invoicing").topic(ORDERS).handle(invoice))
        .consumer(Consumer::new("mailing").topic(INVOICES).handle(mail))
        .keep_log(keep);
    let handling = handling.start().await.unwrap();

    let (request, published) = (ended("place order").await, ended("publish orders-over-two").await);
    assert_eq!(published.parent_span_id, request.span_context.span_id());
    assert_eq!(published.span_kind, SpanKind::Producer);
    let created = context(&published);

    let sent = ended("send orders-over-two").await;
    check_linked(&sent, SpanKind::Client, std::slice::from_ref(&created));
    assert_eq!(attribute(&sent, "messaging.batch.message_count").as_deref(), Some("1"));

    let invoiced = ended("process orders-over-two").await;
    check_linked(&invoiced, SpanKind::Consumer, std::slice::from_ref(&created));
    assert_ne!(invoiced.span_context.trace_id(), published.span_context.trace_id());
    let group = attribute(&invoiced, "messaging.consumer.group.name");
    assert_eq!(group.as_deref(), Some("invoicing"));

    let mailed = ended("process invoices-over-two").await;
    check_linked(&mailed, SpanKind::Consumer, &[context(&invoiced)]);

    let stored = Some(created);
    assert_eq!(
        contexts_in_rows(&shop, ORDERS.as_str()).await,
        std::slice::from_ref(&stored)
    );
    assert_eq!(
        contexts_in_rows(&books, ORDERS.as_str()).await,
        [stored],
        "a relay replaces no context"
    );
    assert_eq!(
        contexts_in_rows(&books, INVOICES.as_str()).await,
        [Some(context(&invoiced))]
    );
    relaying.shutdown(Duration::from_secs(10)).await.unwrap();
    handling.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn a_context_of_its_own_is_kept_and_one_alone_is_stamped() {
    traces();
    let folder = Folder::new();
    let store = folder.store().await;
    let row = NewEvent::untyped(FOREIGN_ORDERS, "order.placed").with_trace(FOREIGN, None);
    store.publish_row(row).await.unwrap();
    store.publish(ALONE, &Invoiced("order-17".to_owned())).await.unwrap();
    let created = context(&ended("publish orders-alone").await);
    assert_eq!(
        contexts_in_rows(&store, FOREIGN_ORDERS.as_str()).await,
        [Some(FOREIGN.to_owned())]
    );
    assert_eq!(contexts_in_rows(&store, ALONE.as_str()).await, [Some(created)]);
}

#[tokio::test]
async fn a_failed_handler_is_an_error_of_its_span() {
    traces();
    let folder = Folder::new();
    let store = folder.store().await;
    let mut row = NewEvent::of(REFUSED, &Placed("order-17".to_owned())).unwrap();
    row = row.with_trace("no context at all", None);
    store.publish_row(row).await.unwrap();
    let service = Eventloom::new(store).consumer(Consumer::new("invoicing").topic(REFUSED).handle(refuse));
    let service = service.start().await.unwrap();
    let failed = ended("process orders-refused").await;
    check_linked(&failed, SpanKind::Consumer, &[]);
    assert_eq!(attribute(&failed, "error.type").as_deref(), Some("permanent"));
    assert!(matches!(failed.status, Status::Error { .. }), "{:?}", failed.status);
    service.shutdown(Duration::from_secs(10)).await.unwrap();
}
