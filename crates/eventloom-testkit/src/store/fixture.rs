//! What a backend gives the suite: fresh databases, a second way in, and what it can do.

use eventloom_core::ports::Backend;
use std::future::Future;

/// What a store can do, where stores differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Two write transactions can be open at once: `false` on SQLite.
    pub concurrent_writers: bool,
    /// Taking a lane ends open transactions of its former owner: `false` on SQLite and behind a pooler.
    pub terminates_former_owners: bool,
}

/// Databases for cases. A fixture serves one case: what it made is removed by [`Fixture::clean_up`] or by dropping it.
///
/// At most two transactions are open at once in a case, so a pool of two connections is enough, also behind a pooler.
/// Its methods panic when they cannot do what they say: the case has failed then.
pub trait Fixture: Send + Sync {
    /// The store under test.
    type Store: Backend;

    /// What the store can do.
    fn capabilities(&self) -> Capabilities;

    /// A store on an empty, migrated database of its own, with 64 lanes.
    fn fresh(&self) -> impl Future<Output = Self::Store> + Send;

    /// A second, independent handle to the database of `store`, as another process would have.
    fn again(&self, store: &Self::Store) -> impl Future<Output = Self::Store> + Send;

    /// Runs and commits one SQL statement with all rights, as programs do that do not use Eventloom.
    ///
    /// A table stands in braces by its bare name, `DELETE FROM {cursors}`; [`fill_in`] puts its real name there.
    fn execute(&self, store: &Self::Store, statement: &str) -> impl Future<Output = ()> + Send;

    /// Whether cases of the engine publish each message twice, under the same logical id: every one of them has to pass
    /// then as well.
    fn doubles(&self) -> bool {
        false
    }

    /// Removes what the fixture made. Called after the case, whether it passed or not.
    fn clean_up(&self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Puts real names in the place of `{table}`. Other braces are text, such as those of JSON.
///
/// ```
/// use eventloom_testkit::store::fill_in;
/// let sql = fill_in("INSERT INTO {outbox} (data) VALUES ('{\"a\": 1}')", |table| format!("eventloom.{table}"));
/// assert_eq!(sql, "INSERT INTO eventloom.outbox (data) VALUES ('{\"a\": 1}')");
/// ```
pub fn fill_in(statement: &str, name_of: impl Fn(&str) -> String) -> String {
    let mut filled = String::new();
    let mut rest = statement;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        match after.split_once('}') {
            Some((table, behind)) if is_name(table) => {
                filled.push_str(&name_of(table));
                rest = behind;
            }
            _ => {
                filled.push('{');
                rest = after;
            }
        }
    }
    filled + rest
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_')
}
