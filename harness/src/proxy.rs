//! Stands between the processes and Postgres, reads the protocol along, and cuts a connection between COMMIT and its answer.

use anyhow::Result;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    task::JoinHandle,
};

/// A message of the protocol is never larger here.
const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// What is cut, and how often it was.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    /// The next COMMIT that comes by loses its answer.
    armed: AtomicBool,
    /// COMMITs that were executed and whose answer was dropped.
    after: AtomicU32,
    /// COMMITs that were dropped themselves: their sender cannot tell the difference.
    before: AtomicU32,
}

impl Cuts {
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// How many commits became indeterminate for those who sent them: executed, and not executed.
    pub(crate) fn made(&self) -> (u32, u32) {
        (self.after.load(Ordering::SeqCst), self.before.load(Ordering::SeqCst))
    }
}

/// A proxy in front of a server on this machine.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    pub(crate) cuts: Arc<Cuts>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let cuts = Arc::new(Cuts::default());
        let shared = cuts.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let cuts = shared.clone();
                tokio::spawn(async move {
                    // A connection that ends, whichever way, is what this is for.
                    let _ = serve(client, server_port, &cuts).await;
                });
            }
        });
        Ok(Proxy { port, cuts, accepting })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve(client: TcpStream, server_port: u16, cuts: &Cuts) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_reads, client_writes) = client.into_split();
    let (server_reads, server_writes) = server.into_split();
    let doomed = AtomicBool::new(false);
    // Whichever direction ends first ends the connection.
    tokio::select! {
        done = requests(client_reads, server_writes, cuts, &doomed) => done,
        done = answers(server_reads, client_writes, cuts, &doomed) => done,
    }
}

/// Passes messages of the client on, one by one.
async fn requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    cuts: &Cuts,
    doomed: &AtomicBool,
) -> Result<()> {
    // The first message has no type byte.
    let mut message = read_body(&mut client, Vec::new()).await?;
    server.write_all(&message).await?;
    loop {
        let kind = client.read_u8().await?;
        message = read_body(&mut client, vec![kind]).await?;
        if is_commit(&message) && cuts.armed.swap(false, Ordering::SeqCst) {
            if fastrand::bool() {
                cuts.before.fetch_add(1, Ordering::SeqCst);
                return Ok(());
            }
            // Before it is sent, or its answer could slip through.
            doomed.store(true, Ordering::SeqCst);
        }
        server.write_all(&message).await?;
    }
}

async fn read_body(from: &mut OwnedReadHalf, mut message: Vec<u8>) -> Result<Vec<u8>> {
    let length = from.read_u32().await?;
    let body = (length as usize).saturating_sub(4);
    anyhow::ensure!(body <= MESSAGE_BYTES_MAX, "a message of {body} bytes");
    message.extend_from_slice(&length.to_be_bytes());
    let head = message.len();
    message.resize(head + body, 0);
    from.read_exact(&mut message[head..]).await?;
    Ok(message)
}

/// A simple query whose text is COMMIT.
fn is_commit(message: &[u8]) -> bool {
    message.first() == Some(&b'Q')
        && message
            .get(5..)
            .is_some_and(|text| text.trim_ascii_start().to_ascii_uppercase().starts_with(b"COMMIT"))
}

async fn answers(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    cuts: &Cuts,
    doomed: &AtomicBool,
) -> Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let bytes = server.read(&mut buffer).await?;
        if bytes == 0 {
            return Ok(());
        }
        if doomed.load(Ordering::SeqCst) {
            // The server has answered, so it was executed.
            cuts.after.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
        client.write_all(&buffer[..bytes]).await?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_known() {
        let query = |text: &str| [b"Q\0\0\0\x0b", text.as_bytes(), b"\0"].concat();
        assert!(is_commit(&query("COMMIT")) && is_commit(&query("commit;")));
        assert!(!is_commit(&query("BEGIN")) && !is_commit(b"P\0\0\0\x0bCOMMIT\0"));
    }
}
