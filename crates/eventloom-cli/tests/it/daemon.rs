//! The relay as a process: what it prints is read as it comes, and it is stopped by a signal.

use crate::{
    program::{Answer, command},
    stores::TestStore,
    wait,
};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

/// A relay that runs. Dropping it kills it.
pub(crate) struct Daemon {
    child: Child,
    events: Arc<Mutex<Vec<Value>>>,
    reading: Option<JoinHandle<()>>,
}

impl Daemon {
    /// Starts `eventloom relay` on a store.
    pub(crate) fn start(source: &TestStore, to: &str, more: &[&str]) -> Self {
        Daemon::start_at(source, source.url(), to, more)
    }

    /// The same, with the source at another address.
    pub(crate) fn start_at(source: &TestStore, store: &str, to: &str, more: &[&str]) -> Self {
        let usual = ["relay", "--to", to, "--json", "--report-every", "200ms"];
        let mut command = command(source.folder(), &[&usual[..], more].concat());
        command.env("EVENTLOOM_STORE", store);
        let mut child = command.spawn().unwrap();
        let events = Arc::<Mutex<Vec<Value>>>::default();
        let (stdout, heard) = (child.stdout.take().unwrap(), events.clone());
        let reading = std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                heard.lock().unwrap().push(serde_json::from_str(&line).unwrap());
            }
        });
        Daemon {
            child,
            events,
            reading: Some(reading),
        }
    }

    /// Waits for an event that is as wished, and returns it.
    pub(crate) fn until(&self, event: &str, wished: impl Fn(&Value) -> bool) -> Value {
        self.until_after(0, event, wished)
    }

    /// The same among what comes from now on.
    pub(crate) fn until_new(&self, event: &str, wished: impl Fn(&Value) -> bool) -> Value {
        let heard = self.events.lock().unwrap().len();
        self.until_after(heard, event, wished)
    }

    fn until_after(&self, heard: usize, event: &str, wished: impl Fn(&Value) -> bool) -> Value {
        wait::until(&format!("event {event:?} as wished"), || {
            let events = self.events.lock().unwrap();
            let mut new = events.iter().skip(heard);
            new.find(|found| found["event"] == event && wished(found)).cloned()
        })
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to stop, and waits for its end.
    pub(crate) fn stop(self) -> Answer {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
        self.ended()
    }

    /// Waits for its end.
    pub(crate) fn ended(mut self) -> Answer {
        let code = wait::until("the relay ends", || self.child.try_wait().unwrap());
        self.reading.take().unwrap().join().unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        let events = self.events.lock().unwrap();
        let lines = events.iter().map(|event| format!("{event}\n"));
        Answer {
            code: code.code().expect("it ended by itself"),
            stdout: lines.collect(),
            stderr,
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended already, unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
