//! Lanes that alternate.

use anyhow::{Context, Result};

/// Runs every lane once a round and gives what each did. Each round begins with another lane: being first or last, right
/// after a checkpoint or with warm caches, must not be one lane's privilege.
pub(crate) async fn alternate<T, const LANES: usize>(
    rounds: u32,
    mut run: impl AsyncFnMut(usize, u32) -> Result<T>,
) -> Result<[Vec<T>; LANES]> {
    let mut done: [Vec<T>; LANES] = std::array::from_fn(|_| Vec::new());
    for round in 0..rounds {
        for turn in 0..LANES {
            let lane = (round as usize + turn) % LANES;
            let did = run(lane, round)
                .await
                .with_context(|| format!("lane {lane} in round {round}"))?;
            done[lane].push(did);
        }
    }
    Ok(done)
}
