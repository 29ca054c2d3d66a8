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
/// ```ignore
/// let mut tx = pool.begin().await?;
/// let placed = once(&mut *tx, &scope, idempotency_key, &request, async |connection: &mut PgConnection| {
///     place_order(connection, &request).await
/// })
/// .await?;
/// tx.commit().await?;
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
    let tables = S::Tables::default();
    let request = serde_json::to_vec(request).map_err(OnceError::Result)?;
    let fingerprint = Sha256::digest(&request);
    let claim = S::once_claim(&tables, connection, scope, key, &fingerprint)
        .await
        .map_err(OnceError::Store)?;
    match claim {
        OnceClaim::New => {
            let result = work(connection).await.map_err(OnceError::Work)?;
            let json = serde_json::to_string(&result).map_err(OnceError::Result)?;
            S::once_record(&tables, connection, scope, key, &json)
                .await
                .map_err(OnceError::Store)?;
            Ok(Once::Done(result))
        }
        OnceClaim::Stored(json) => serde_json::from_str(&json).map(Once::Before).map_err(OnceError::Result),
        OnceClaim::Mismatch => Err(OnceError::Mismatch { key: key.to_owned() }),
        OnceClaim::InProgress => Err(OnceError::InProgress { key: key.to_owned() }),
    }
}
