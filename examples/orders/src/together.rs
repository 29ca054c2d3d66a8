//! Everything in one process: the placer, a service with all three groups, and a relay where they are elsewhere.

use crate::{
    board::Board,
    consume::{self, Group},
    place::{Share, place},
    report::{End, Outcome},
    run::Run,
    signals::Stop,
    store::Shop,
};
use anyhow::Context;
use std::{pin::pin, time::Duration};

const LOOK_EVERY: Duration = Duration::from_millis(200);
const DRAIN_WITHIN: Duration = Duration::from_secs(30);

/// Runs until everything is placed and handled, or until it is stopped.
pub(crate) async fn run<S: Shop, B: Shop>(run: &Run<S, B>) -> anyhow::Result<Outcome> {
    let stop = Stop::on_signals()?;
    let service = consume::service(run.market.clone(), &Group::ALL, &run.mailbox, None)?;
    let service = service.start().await.context("the consumers cannot start")?;
    let relay = match run.relays {
        true => Some(
            consume::relay(run.shop.clone(), run.market.clone(), None)
                .start()
                .await
                .context("the relay cannot start")?,
        ),
        false => None,
    };
    let purchases = &run.input.purchases[..run.purchases];
    let batch = run.arguments.batch.into();
    let mut placing = pin!(place(&run.shop, purchases, Share::ALL, batch, stop.token()));
    let mut is_placing = true;
    let mut board = Board::of(run);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    let end = loop {
        tokio::select! {
            placed = &mut placing, if is_placing => {
                placed.context("placing orders failed; started again, it goes on where it was")?;
                is_placing = false;
            }
            () = stop.token().cancelled(), if !is_placing => break End::Stopped(stop.code()),
            _ = ticks.tick() => {
                board.look(run).await;
                if board.all_done(run).await {
                    break End::Done;
                }
                if let Some(why) = board.stalled() {
                    let consumers = service.health().await.consumers.into_iter();
                    let troubles = consumers.filter_map(|consumer| Some((consumer.name, consumer.trouble?.1)));
                    let troubles = troubles.map(|(name, trouble)| format!("; {name}: {trouble}"));
                    break End::Stalled(why + &troubles.collect::<String>());
                }
            }
        }
    };
    consume::note_health(&service).await;
    if let Some(relay) = relay {
        consume::note_health(&relay).await;
        if let Err(error) = relay.shutdown(DRAIN_WITHIN).await {
            tracing::warn!(%error, "not everything was relayed");
        }
    }
    if let Err(error) = service.shutdown(DRAIN_WITHIN).await {
        tracing::warn!(%error, "not everything drained");
    }
    board.look(run).await;
    Ok(Outcome {
        end,
        rates: board.close(),
        killed: Vec::new(),
    })
}
