//! Work that happens once for a key of the caller's: HTTP requests with an Idempotency-Key.

use eventloom_core::{
    ConsumerName, StoreError,
    ports::{ConnectionOf, Inbox, OnceClaim},
};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

/// What [`once`] came to. Exhaustive: a caller answers both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Once<T> {
    /// The work was done now; commit the transaction.
    Done(T),
    /// It was done before: the stored result.
    Before(T),
}

impl<T> Once<T> {
    /// The result, whenever it was made.
    pub fn into_inner(self) -> T {
        match self {
            Once::Done(result) | Once::Before(result) => result,
        }
    }
}

/// Why [`once`] gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnceError<E> {
    /// The key was used with another request: an error of the client (HTTP 422).
    #[error("the key {key:?} was used with another request")]
    Mismatch {
        /// The key.
        key: String,
    },
    /// The same key is being worked on at the moment: try later (HTTP 409).
    #[error("the key {key:?} is being worked on")]
    InProgress {
        /// The key.
        key: String,
    },
    /// The work failed. Roll the transaction back: the key stays free.
    #[error(transparent)]
    Work(E),
    /// The stored result does not decode as the type asked for, or the new one does not encode.
    #[error("the stored result does not fit")]
    Result(#[source] serde_json::Error),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
}

/// Does `work` once for `(scope, key)`, in the caller's transaction: the result is stored with it, and given back when the
/// same key comes again with the same request.
///
/// The caller commits. When `work` fails, the caller rolls back, and the key can be used again.
///
/// The keys stand in the tables of the default schema, and its statements are prepared; [`once_in`] goes by the store's
/// own. They are kept for [`Eventloom::keep_once`](crate::Eventloom::keep_once).
///
/// ```
/// use eventloom_core::{ConsumerName, ports::{ConnectionOf, Inbox}};
/// use eventloom_runtime::{Once, OnceError, once};
///
/// #[derive(serde::Serialize)]
/// struct PlaceOrder { item: String }
///
/// async fn place_order<C>(connection: &mut C, order: &PlaceOrder) -> Result<i64, std::io::Error> {
///     Ok(17) // your INSERT, on this connection
/// }
///
/// /// The caller commits when this is `Ok`, and rolls back otherwise.
/// async fn post<S: Inbox>(
///     connection: &mut S::Connection, // `&mut *tx`
///     idempotency_key: &str,
///     order: PlaceOrder,
/// ) -> Result<Once<i64>, OnceError<std::io::Error>>
/// where
///     S::Connection: ConnectionOf<S>,
/// {
///     let scope = ConsumerName::parse("http-orders").expect("a legal name");
///     let work = async |connection: &mut S::Connection| place_order(connection, &order).await;
///     once::<S, _, _, _, _>(connection, &scope, idempotency_key, &order, work).await
/// }
/// ```
///
/// # Errors
/// See [`OnceError`]; after any of them, roll back.
///
/// # Cancel safety
/// Dropping the future leaves the transaction to be rolled back by its owner.
pub async fn once<S, C, R, T, E>(
    connection: &mut C,
    scope: &ConsumerName,
    key: &str,
    request: &R,
    work: impl AsyncFnOnce(&mut C) -> Result<T, E>,
) -> Result<Once<T>, OnceError<E>>
where
    S: Inbox<Connection = C>,
    C: ConnectionOf<S>,
    R: Serialize + ?Sized,
    T: Serialize + DeserializeOwned,
{
    once_on::<S, R, T, E>(&S::Tables::default(), connection, scope, key, request, work).await
}

/// As [`once`], in the tables of this store: under its schema, and as a pooler wants it.
///
/// # Errors
/// See [`OnceError`]; after any of them, roll back.
pub async fn once_in<S, R, T, E>(
    store: &S,
    connection: &mut S::Connection,
    scope: &ConsumerName,
    key: &str,
    request: &R,
    work: impl AsyncFnOnce(&mut S::Connection) -> Result<T, E>,
) -> Result<Once<T>, OnceError<E>>
where
    S: Inbox,
    R: Serialize + ?Sized,
    T: Serialize + DeserializeOwned,
{
    once_on::<S, R, T, E>(store.tables(), connection, scope, key, request, work).await
}

async fn once_on<S, R, T, E>(
    tables: &S::Tables,
    connection: &mut S::Connection,
    scope: &ConsumerName,
    key: &str,
    request: &R,
    work: impl AsyncFnOnce(&mut S::Connection) -> Result<T, E>,
) -> Result<Once<T>, OnceError<E>>
where
    S: Inbox,
    R: Serialize + ?Sized,
    T: Serialize + DeserializeOwned,
{
    let request = serde_json::to_vec(request).map_err(OnceError::Result)?;
    let fingerprint = Sha256::digest(&request);
    let claim = S::once_claim(tables, connection, scope, key, &fingerprint)
        .await
        .map_err(OnceError::Store)?;
    match claim {
        OnceClaim::New => {
            let result = work(connection).await.map_err(OnceError::Work)?;
            let json = serde_json::to_string(&result).map_err(OnceError::Result)?;
            S::once_record(tables, connection, scope, key, &json)
                .await
                .map_err(OnceError::Store)?;
            Ok(Once::Done(result))
        }
        OnceClaim::Stored(json) => serde_json::from_str(&json).map(Once::Before).map_err(OnceError::Result),
        OnceClaim::Mismatch => Err(OnceError::Mismatch { key: key.to_owned() }),
        OnceClaim::InProgress => Err(OnceError::InProgress { key: key.to_owned() }),
    }
}
