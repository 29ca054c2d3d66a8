//! What `open` looks at before it trusts a log: library, versions, lanes.

use crate::{OpenError, migrate::SCHEMA_VERSION};
use eventloom_core::LaneCount;
use sqlx::SqliteConnection;

/// The number of lanes, or what is wrong.
pub(crate) async fn check(
    connection: &mut SqliteConnection,
    place: &str,
    asked: Option<LaneCount>,
) -> Result<LaneCount, OpenError> {
    let unreachable = |error: sqlx::Error| OpenError::Unreachable {
        place: place.to_owned(),
        source: error.into(),
    };
    let library: String = sqlx::query_scalar("SELECT sqlite_version()")
        .fetch_one(&mut *connection)
        .await
        .map_err(unreachable)?;
    if !is_recent(&library) {
        return Err(OpenError::Library { found: library });
    }
    let there = "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'eventloom_schema_versions'";
    let tables: i64 = sqlx::query_scalar(there)
        .fetch_one(&mut *connection)
        .await
        .map_err(unreachable)?;
    if tables == 0 {
        return Err(OpenError::NotMigrated {
            place: place.to_owned(),
        });
    }
    let versions = "SELECT max(version), max(min_program) FROM eventloom_schema_versions";
    let (version, min_program): (Option<i32>, Option<i32>) = sqlx::query_as(versions)
        .fetch_one(&mut *connection)
        .await
        .map_err(unreachable)?;
    let (Some(found), Some(min_program)) = (version, min_program) else {
        return Err(OpenError::NotMigrated {
            place: place.to_owned(),
        });
    };
    if min_program > SCHEMA_VERSION {
        return Err(OpenError::TooNew {
            place: place.to_owned(),
            min_program,
            program: SCHEMA_VERSION,
        });
    }
    if found < SCHEMA_VERSION {
        return Err(OpenError::TooOld {
            place: place.to_owned(),
            found,
            needed: SCHEMA_VERSION,
        });
    }
    let lanes = "SELECT lanes FROM eventloom_logs WHERE name = 'outbox'";
    let found: i64 = sqlx::query_scalar(lanes)
        .fetch_one(&mut *connection)
        .await
        .map_err(unreachable)?;
    let lanes = u16::try_from(found).ok().and_then(LaneCount::new);
    match (lanes, asked) {
        (Some(lanes), None) => Ok(lanes),
        (Some(lanes), Some(asked)) if lanes == asked => Ok(lanes),
        (_, asked) => {
            let asked = asked.unwrap_or_default().get();
            Err(OpenError::Lanes {
                place: place.to_owned(),
                found,
                asked,
            })
        }
    }
}

/// `octet_length` came with 3.43.
fn is_recent(version: &str) -> bool {
    let mut parts = version.split('.').map_while(|part| part.parse::<u32>().ok());
    (parts.next(), parts.next()) >= (Some(3), Some(43))
}
