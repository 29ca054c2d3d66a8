//! An HTTP endpoint beside a service: `/metrics` for Prometheus, `/health/live` and `/health/ready` for whoever restarts
//! processes and sends them traffic.
//!
//! Three answers to GET need no framework; what is served by hyper itself has its connections as tasks of ours, which end
//! with the endpoint.

use eventloom_core::chain;
use eventloom_runtime::{Companion, Health, Watch};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// The host when none is named: what is told here is nobody's business outside.
const HOST: &str = "127.0.0.1";
/// Connections at once; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may stay, however busy or idle.
const CONNECTION_LIMIT: Duration = Duration::from_secs(60);
/// How long a request may take to arrive.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// How often the recorder tidies up: what it keeps of histograms until somebody asks grows meanwhile.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// What the conventions advise for durations, and shorter: a handler with one UPDATE takes less than a millisecond.
const BUCKETS: [f64; 18] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0,
];
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// An endpoint was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// Somebody else listens there.
    #[error("{address} is taken: another process listens there; choose another port, or 0 for any that is free")]
    Taken {
        /// Where it was to listen.
        address: String,
    },
    /// It cannot listen there.
    #[error("cannot listen on {address:?}; expected a port, which means {HOST}, or host:port")]
    Listen {
        /// Where it was to listen.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The process has a recorder of metrics already, and there is one for each process.
    #[error("this process has a recorder of metrics already; give its text to Endpoint::bind_with")]
    Recorder,
}

/// Listens on an address, and answers as long as its service runs.
///
/// | path | status | what |
/// |---|---|---|
/// | `/metrics` | 200 | metrics of the process, as Prometheus reads them |
/// | `/health/live` | 200, 503 | 503: tasks of the engine have ended, restart the process |
/// | `/health/ready` | 200, 503 | JSON with `ready`, and `not_ready` with what stands against it |
///
/// It begins before the service waits for its store, so a process whose database is down is alive and not ready.
///
/// ```
/// use eventloom::{Endpoint, Eventloom, Service, ports::Backend};
/// use std::error::Error;
///
/// async fn run<S: Backend>(store: S) -> Result<Service<S>, Box<dyn Error>> {
///     let endpoint = Endpoint::bind("9464").await?; // before the start: it installs the recorder
///     Ok(Eventloom::new(store).beside(endpoint).start().await?)
/// }
/// ```
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    render: Render,
    upkeep: Option<PrometheusHandle>,
}

type Render = Arc<dyn Fn() -> String + Send + Sync>;

impl Endpoint {
    /// Listens, and installs a recorder of metrics for the process. Call it before the service is started: what is started
    /// earlier tells nobody. A port alone is one of this machine; write the host (`0.0.0.0:9464`) to be reached from
    /// elsewhere, and mind that nobody is asked for a password.
    ///
    /// # Errors
    /// The address is taken or cannot be listened on, or the process has a recorder of its own.
    pub async fn bind(listen: &str) -> Result<Self, EndpointError> {
        let listener = listener(listen).await?;
        let handle = recorder()?;
        let upkeep = Some(handle.clone());
        Endpoint::on(listener, listen, Arc::new(move || handle.render()), upkeep)
    }

    /// As [`Endpoint::bind`], for a program that has installed a recorder: `render` gives its metrics as text.
    ///
    /// # Errors
    /// The address is taken or cannot be listened on.
    pub async fn bind_with(
        listen: &str,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        Endpoint::on(listener(listen).await?, listen, Arc::new(render), None)
    }

    fn on(
        listener: TcpListener,
        listen: &str,
        render: Render,
        upkeep: Option<PrometheusHandle>,
    ) -> Result<Self, EndpointError> {
        let address = listener.local_addr().map_err(|source| EndpointError::Listen {
            address: listen.to_owned(),
            source,
        })?;
        Ok(Endpoint {
            listener,
            address,
            render,
            upkeep,
        })
    }

    /// Where it listens; tells the port when it was asked for any.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn listener(listen: &str) -> Result<TcpListener, EndpointError> {
    let listen = listen.trim();
    let port = listen.strip_prefix(':').unwrap_or(listen);
    let address = match port.parse::<u16>() {
        Ok(port) => format!("{HOST}:{port}"),
        Err(_) => listen.to_owned(),
    };
    TcpListener::bind(&address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => EndpointError::Taken { address },
        _ => EndpointError::Listen { address, source },
    })
}

/// The recorder of this process; the one that an earlier endpoint has installed serves later ones too.
fn recorder() -> Result<PrometheusHandle, EndpointError> {
    static INSTALLED: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*installed {
        return Ok(handle.clone());
    }
    let builder = PrometheusBuilder::new().with_recommended_naming(true);
    // There are buckets in it, which is all that could be wrong.
    let builder = builder
        .set_buckets_for_metric(Matcher::Suffix(".duration".to_owned()), &BUCKETS)
        .map_err(|_| EndpointError::Recorder)?;
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| EndpointError::Recorder)?;
    *installed = Some(handle.clone());
    Ok(handle)
}

impl Companion for Endpoint {
    async fn run(self, watch: Watch) {
        tracing::info!(address = %self.address, "answering for metrics and health");
        // Dropped with this future, and their tasks with them.
        let mut connections = JoinSet::new();
        let mut upkeep = tokio::time::interval(UPKEEP_EVERY);
        loop {
            tokio::select! {
                () = watch.closed() => return,
                _ = upkeep.tick() => if let Some(recorder) = &self.upkeep {
                    recorder.run_upkeep();
                },
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS_MAX => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve(stream, watch.clone(), self.render.clone()));
                    }
                    // Of one that has gone, or for want of files: the next may do better.
                    Err(error) => {
                        tracing::debug!(%error, "a connection was not accepted");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
            }
        }
    }
}

async fn serve(stream: TcpStream, watch: Watch, render: Render) {
    let answer = service_fn(|request: Request<Incoming>| {
        let (watch, render) = (&watch, &render);
        async move { Ok::<_, Infallible>(answer(&request, watch, render).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_LIMIT)
        .serve_connection(TokioIo::new(stream), answer);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_LIMIT, connection).await {
        tracing::debug!(error = %chain(&error), "a connection of the endpoint ended");
    }
}

async fn answer(request: &Request<Incoming>, watch: &Watch, render: &Render) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET and HEAD alone\n".to_owned());
        refused
            .headers_mut()
            .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    match request.uri().path() {
        "/metrics" => text(StatusCode::OK, TEXT, render()),
        "/health/live" => {
            let ended = watch.tasks_ended();
            let live = serde_json::json!({ "live": ended == 0, "tasks_ended": ended });
            text(status(ended == 0), JSON, format!("{live}\n"))
        }
        "/health/ready" => {
            let health = watch.health().await;
            let not_ready = match &health {
                Some(health) => health.not_ready(),
                None => vec!["it is starting, or waiting for its store".to_owned()],
            };
            let ready = not_ready.is_empty();
            let body = serde_json::json!({ "ready": ready, "not_ready": not_ready, "consumers": consumers(&health) });
            text(status(ready), JSON, format!("{body}\n"))
        }
        _ => {
            let there = "/metrics, /health/live and /health/ready are here\n";
            text(StatusCode::NOT_FOUND, TEXT, there.to_owned())
        }
    }
}

/// What whoever was woken wants to see first.
fn consumers(health: &Option<Health>) -> Vec<serde_json::Value> {
    let consumers = health.iter().flat_map(|health| &health.consumers);
    consumers
        .map(|consumer| {
            serde_json::json!({
                "name": consumer.name,
                "lanes": consumer.lanes,
                "lease_left_seconds": consumer.lease_left.as_secs_f64(),
                "paused": consumer.paused,
                "dropped": consumer.dropped,
                "outage": consumer.outage,
                "alarm": consumer.alarm,
            })
        })
        .collect()
}

fn status(good: bool) -> StatusCode {
    match good {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn text(status: StatusCode, kind: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let header = hyper::header::HeaderValue::from_static;
    response.headers_mut().insert(CONTENT_TYPE, header(kind));
    response.headers_mut().insert(CACHE_CONTROL, header("no-store"));
    response
}
