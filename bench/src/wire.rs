//! A counter on the wire: it passes everything on between clients and the server, and counts how often a client asked.

use anyhow::Result;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Stands before a server as long as it lives.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) port: u16,
    round_trips: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn before(host: String, port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let own_port = listener.local_addr()?.port();
        let round_trips = Arc::new(AtomicU64::new(0));
        let counted = round_trips.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (host, counted) = (host.clone(), counted.clone());
                tokio::spawn(async move {
                    if let Ok(server) = TcpStream::connect((host.as_str(), port)).await {
                        pass_on(client, server, &counted).await;
                    }
                });
            }
        });
        Ok(Wire {
            port: own_port,
            round_trips,
            task,
        })
    }

    pub(crate) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::Relaxed)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn pass_on(client: TcpStream, server: TcpStream, round_trips: &AtomicU64) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // Whatever a client sends before it is answered is one question.
    let answered = AtomicBool::new(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asking = pump(from_client, to_server, || {
        if answered.swap(false, Ordering::Relaxed) {
            round_trips.fetch_add(1, Ordering::Relaxed);
        }
    });
    let answering = pump(from_server, to_client, || answered.store(true, Ordering::Relaxed));
    tokio::select! {
        () = asking => {}
        () = answering => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, seen: impl Fn()) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 {
            return;
        }
        seen();
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
