//! The endpoint beside a service: metrics as Prometheus reads them, and health.

use crate::folder::{Folder, until};
use crate::order::Placed;
use eventloom::{Endpoint, EndpointError, Eventloom, Service, sqlite::prelude::*};
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

const ORDERS: Topic = Topic::new("orders");

#[derive(Debug, thiserror::Error)]
#[error("no such order")]
struct NoSuchOrder;

impl Classify for NoSuchOrder {
    fn retry_class(&self) -> RetryClass {
        RetryClass::Permanent
    }
}

async fn invoice(placed: Placed, _: &mut Context<'_>) -> Result<(), NoSuchOrder> {
    match placed.0.as_str() {
        "poison" => Err(NoSuchOrder),
        _ => Ok(()),
    }
}

async fn request(address: SocketAddr, method: &str, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("{method} {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    Ok((status.unwrap_or(0), body.to_owned()))
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    request(address, "GET", path).await.unwrap()
}

/// The value of the first series of that name with all of these labels.
fn value(metrics: &str, name: &str, labels: &[&str]) -> Option<f64> {
    let line = metrics.lines().find(|line| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && labels.iter().all(|label| line.contains(label))
    })?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// The recorder is the process's: what is measured needs a name of its own.
async fn started(name: &str, store: &Sqlite, endpoint: Endpoint) -> Service<Sqlite> {
    let consumer = Consumer::new(name).topic(ORDERS).handle(invoice);
    let eventloom = Eventloom::new(store.clone()).consumer(consumer).beside(endpoint);
    let every = Some(Duration::from_millis(100));
    eventloom.observe_every(every).start().await.unwrap()
}

#[tokio::test]
async fn it_tells_what_the_service_does_and_ends_with_it() {
    let folder = Folder::new();
    let store = folder.store().await;
    let endpoint = Endpoint::bind("0").await.unwrap();
    let address = endpoint.address();
    assert!(address.ip().is_loopback(), "{address}");
    let service = started("measured", &store, endpoint).await;
    for order in ["order-1", "poison", "order-2"] {
        store.publish(ORDERS, &Placed(order.to_owned())).await.unwrap();
    }
    let of_group = r#"messaging_consumer_group_name="measured""#;
    let (of_topic, failed) = (r#"messaging_destination_name="orders""#, r#"error_type="permanent""#);
    let consumed = "messaging_client_consumed_messages_total";
    let metrics = until("the messages in the metrics", async || {
        let (status, metrics) = get(address, "/metrics").await;
        assert_eq!(status, 200);
        let dead = value(&metrics, "eventloom_held_dead", &[of_group]) == Some(1.0);
        (dead && value(&metrics, consumed, &[of_group, of_topic]).is_some()).then_some(metrics)
    })
    .await;
    let well = metrics
        .lines()
        .filter(|line| line.starts_with(consumed) && line.contains(of_group) && !line.contains("error_type"));
    let well: Vec<&str> = well.collect();
    assert_eq!(well.len(), 1, "{well:?}");
    assert!(
        well[0].ends_with(" 2") && well[0].contains(r#"messaging_system="eventloom""#),
        "{well:?}"
    );
    assert!(
        value(&metrics, consumed, &[of_group, of_topic, failed]) >= Some(1.0),
        "{metrics}"
    );
    assert_eq!(value(&metrics, "eventloom_dead_total", &[of_group]), Some(1.0));
    let bucket = [of_group, of_topic, r#"le="0.0005""#];
    let buckets = value(&metrics, "messaging_process_duration_seconds_bucket", &bucket);
    assert!(buckets.is_some(), "{metrics}");
    assert_eq!(value(&metrics, "eventloom_lag", &[of_group]), Some(0.0));
    assert_eq!(value(&metrics, "eventloom_store_reachable", &[]), Some(1.0));
    assert!(
        value(&metrics, "eventloom_held_dead_age_seconds", &[of_group]) >= Some(0.0),
        "{metrics}"
    );

    assert_eq!(get(address, "/health/live").await.0, 200);
    let ready = until("readiness", async || {
        let (status, ready) = get(address, "/health/ready").await;
        (status == 200).then_some(ready)
    })
    .await;
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    assert_eq!(ready["ready"], true);
    assert_eq!(ready["consumers"][0]["name"], "measured");
    assert_eq!(get(address, "/").await.0, 404);
    assert_eq!(request(address, "POST", "/metrics").await.unwrap().0, 405);

    let hot = &service.health().await.consumers[0].hot_keys;
    assert!(
        hot.iter().any(|key| key.key == "order-1" && key.messages == 1),
        "{hot:?}"
    );
    service.shutdown(Duration::from_secs(10)).await.unwrap();
    assert!(
        request(address, "GET", "/health/live").await.is_err(),
        "nothing listens any more"
    );
}

#[tokio::test]
async fn a_dropped_service_takes_it_along() {
    let folder = Folder::new();
    let store = folder.store().await;
    let endpoint = Endpoint::bind("127.0.0.1:0").await.unwrap();
    let address = endpoint.address();
    let service = started("dropped", &store, endpoint).await;
    // A client that stays: its connection ends as well.
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert_eq!(get(address, "/health/live").await.0, 200);
    drop(service);
    until("the end of the connection", async || {
        let mut rest = [0; 1];
        matches!(idle.try_read(&mut rest), Ok(0) | Err(_)).then_some(())
    })
    .await;
    let ended = idle.read(&mut [0; 1]).await;
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(request(address, "GET", "/metrics").await.is_err());
}

#[tokio::test]
async fn while_the_store_is_waited_for_it_is_alive_and_not_ready() {
    let folder = Folder::new();
    let store = folder.store().await;
    let endpoint = Endpoint::bind("0").await.unwrap();
    let address = endpoint.address();
    // Another process migrates, checkpoints, or is stopped in a debugger: registering has to wait.
    let lock = store.begin_write().await.unwrap();
    let starting = tokio::spawn({
        let store = store.clone();
        async move { started("waiting", &store, endpoint).await }
    });
    let body = until("an answer", async || {
        let (status, body) = request(address, "GET", "/health/ready").await.ok()?;
        (status == 503).then_some(body)
    })
    .await;
    assert!(body.contains("waiting for its store"), "{body}");
    assert_eq!(get(address, "/health/live").await.0, 200);
    lock.rollback().await.unwrap();
    let service = starting.await.unwrap();
    until("readiness", async || {
        (get(address, "/health/ready").await.0 == 200).then_some(())
    })
    .await;
    service.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test]
async fn an_address_that_is_taken_is_named() {
    let first = Endpoint::bind("0").await.unwrap();
    let port = first.address().port();
    for listen in [format!("{port}"), format!(":{port}"), format!("127.0.0.1:{port}")] {
        let refused = Endpoint::bind(&listen).await.err().unwrap();
        assert!(matches!(refused, EndpointError::Taken { .. }), "{refused:?}");
        let text = refused.to_string();
        assert!(text.starts_with(&format!("127.0.0.1:{port} is taken")), "{text}");
    }
    let nowhere = Endpoint::bind("not an address").await.err().unwrap();
    assert!(nowhere.to_string().contains("expected a port"), "{nowhere}");
}
