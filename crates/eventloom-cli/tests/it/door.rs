//! A way to a server of Postgres that can be shut: for the program the server is down then, and for nobody else.

use crate::stores::TestStore;
use std::{
    io::Write,
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
};

/// A port of its own, at which nobody listens before it is opened.
pub(crate) struct Door {
    port: u16,
    server: String,
    url: String,
    /// Those who went through; `None` while it is shut.
    passed: Arc<Mutex<Option<Vec<TcpStream>>>>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Door {
    pub(crate) fn new(store: &TestStore) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (scheme, rest) = store.url().split_once("://").unwrap();
        let (authority, database) = rest.rsplit_once('/').unwrap();
        let (login, server) = authority.rsplit_once('@').unwrap_or(("postgres", authority));
        Door {
            port,
            server: server.to_owned(),
            url: format!("{scheme}://{login}@127.0.0.1:{port}/{database}"),
            passed: Arc::default(),
            listening: Mutex::default(),
        }
    }

    /// The store's URL, by this door.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Lets everybody through from now on.
    pub(crate) fn open(&self) {
        let listener = TcpListener::bind(("127.0.0.1", self.port)).unwrap();
        let (server, passed) = (self.server.clone(), self.passed.clone());
        *passed.lock().unwrap() = Some(Vec::new());
        let listening = thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut passed = passed.lock().unwrap();
                let Some(passed) = passed.as_mut() else { break };
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                passed.push(client.try_clone().unwrap());
                let (from_client, from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || pass(from_client, server));
                thread::spawn(move || pass(from_server, client));
            }
        });
        *self.listening.lock().unwrap() = Some(listening);
    }

    /// Throws everybody out, and lets nobody in.
    pub(crate) fn shut(&self) {
        for passed in self.passed.lock().unwrap().take().into_iter().flatten() {
            let _ = passed.shutdown(Shutdown::Both);
        }
        // Whoever knocks once more wakes the listener, which sees that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.listening.lock().unwrap().take().unwrap().join().unwrap();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream) {
    // Whoever hangs up ends both ways.
    let _ = std::io::copy(&mut from, &mut to).and_then(|_| to.flush());
    let _ = to.shutdown(Shutdown::Both);
}
