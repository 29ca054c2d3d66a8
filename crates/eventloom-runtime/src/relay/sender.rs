//! Hands messages to the broker and sees to their fates: a message that may have arrived is sent again before anything
//! else of its key, and what stands behind one that was not accepted stays behind.

use super::{
    state::{State, Verified},
    telling::Telling,
    verify::{Unverified, verify},
};
use crate::{clock::pace, group::Group, time_limit::ports::*, worker::Stopped};
use eventloom_core::{
    faults,
    ports::{Backend, BrokerError, Fate, Outgoing, Source},
};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};
use tracing::Instrument;

/// How often a message of unknown fate is sent again in one go.
const RESENDS: u32 = 3;
const RESEND_PAUSE: Duration = Duration::from_millis(50);

/// What became of messages.
pub(super) struct Sent {
    /// Of each its fate; [`Fate::Unknown`] for those that are still to be sent.
    pub(super) fates: Vec<Fate>,
    /// Those of unknown fate, while the broker has confirmed others since: it is not the broker that is to blame.
    pub(super) blamed: HashSet<usize>,
}

/// Sends messages, in order.
///
/// # Errors
/// The broker takes nothing for now, and nothing was settled.
pub(super) async fn send<S: Backend>(group: &Group<S>, relay: &State, messages: &[Outgoing]) -> Result<Sent, Stopped> {
    let mut fates = before_sending(relay, messages);
    let unasked: Vec<bool> = fates.iter().map(Option::is_some).collect();
    // Whether the broker has said of any message what becomes of it.
    let mut any = false;
    let mut resends = 0;
    let mut trouble = None;
    // Of unknown fate: everything else that may be sent is sent first, then these again.
    let mut doubtful: HashSet<usize> = HashSet::new();
    let mut why = String::new();
    loop {
        let wave = wave(relay, messages, &mut fates, &doubtful);
        if wave.is_empty() {
            if doubtful.is_empty() {
                break;
            }
            if resends == RESENDS || group.is_stopping() {
                trouble = Some(why);
                break;
            }
            tracing::debug!(relay = %group.name(), why, "sending again what may have arrived");
            pace(RESEND_PAUSE * (1 << (2 * resends))).await;
            resends += 1;
            doubtful.clear();
            continue;
        }
        let told = match submit(group, relay, messages, &wave).await? {
            Ok(told) => told,
            Err(error) => {
                trouble = Some(error.to_string());
                break;
            }
        };
        let mut answered = false;
        for (index, fate) in wave.iter().zip(told) {
            match fate {
                Fate::Unknown(unknown) => {
                    answered |= doubtful.insert(*index);
                    why = unknown;
                }
                // Looked at again when it is known what became of the one before.
                Fate::Behind => {}
                fate => {
                    (answered, any) = (true, true);
                    if fate == Fate::Confirmed {
                        relay.note_confirmed();
                    }
                    fates[*index] = Some(fate);
                }
            }
        }
        if !answered {
            doubtful.extend(wave);
            "the broker said nothing of it".clone_into(&mut why);
        }
    }
    let position = |index: usize| messages[index].message.position;
    let is_settled = |index: &usize| matches!(&fates[*index], Some(fate) if *fate != Fate::Behind);
    relay.settled((0..messages.len()).filter(is_settled).map(position));
    // What was not handed over is in no doubt.
    let in_doubt = doubtful.len();
    let blamed = doubtful.into_iter().filter(|index| relay.doubt(position(*index)));
    let blamed: HashSet<usize> = blamed.collect();
    // Where messages are to blame for all the trouble, nobody else waits for it.
    let of_the_broker = trouble
        .as_deref()
        .filter(|_| blamed.is_empty() || blamed.len() < in_doubt);
    let told = fates
        .iter()
        .zip(&unasked)
        .map(|(fate, unasked)| fate.as_ref().filter(|_| !unasked));
    note(group, relay, messages, told, of_the_broker);
    match trouble {
        Some(_) if !any && blamed.is_empty() => Err(Stopped::Broker),
        why => {
            let unknown = Fate::Unknown(why.unwrap_or_default());
            let fates = fates.into_iter().map(|fate| fate.unwrap_or_else(|| unknown.clone()));
            Ok(Sent {
                fates: fates.collect(),
                blamed,
            })
        }
    }
}

/// What is known without asking: what the broker could never take, and topics that take nothing for now.
fn before_sending(relay: &State, messages: &[Outgoing]) -> Vec<Option<Fate>> {
    let most = relay.capabilities.payload_bytes_max;
    let topics = relay.topics();
    let fate = |outgoing: &Outgoing| {
        let message = &outgoing.message;
        if let Some(bytes) = message.omitted {
            let place = relay.place();
            return Some(Fate::Refused(format!(
                "the payload has {bytes} bytes, and {place} takes at most {most}"
            )));
        }
        if let Err(why) = relay.outlet.check(&message.envelope) {
            return Some(Fate::Refused(why));
        }
        let breaker = topics.get(&message.envelope.topic)?;
        let wait = breaker.probe_in(relay.now()).filter(|wait| !wait.is_zero())?;
        Some(Fate::Blocked(format!(
            "topic {:?} takes nothing for {wait:.1?}",
            message.envelope.topic
        )))
    };
    messages.iter().map(fate).collect()
}

/// What may be handed over now: in order, and nothing of a key behind what was not accepted. What can never be handed over
/// in this round is settled on the way.
fn wave(relay: &State, messages: &[Outgoing], fates: &mut [Option<Fate>], doubtful: &HashSet<usize>) -> Vec<usize> {
    let mut wave = Vec::with_capacity(messages.len());
    let mut stuck: HashSet<&str> = HashSet::new();
    let mut ahead: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let key = message.key();
        match &fates[index] {
            Some(Fate::Confirmed) => {}
            Some(_) => stuck.extend(key),
            None if key.is_some_and(|key| stuck.contains(key)) => fates[index] = Some(Fate::Behind),
            None if key.is_some_and(|key| ahead.contains(key)) && !faults::defect("successor_after_unknown") => {}
            None if doubtful.contains(&index) => ahead.extend(key),
            None => {
                wave.push(index);
                if !relay.capabilities.pipelines {
                    ahead.extend(key);
                }
            }
        }
    }
    wave
}

/// Hands a wave over and waits for its fates, as many as were asked for.
async fn submit<S: Backend>(
    group: &Group<S>,
    relay: &State,
    messages: &[Outgoing],
    wave: &[usize],
) -> Result<Result<Vec<Fate>, BrokerError>, Stopped> {
    let mut opened = match open(group, relay).await? {
        Ok(producer) => producer,
        Err(error) => return Ok(Err(error)),
    };
    let mut batch: Vec<Outgoing> = wave.iter().map(|index| messages[*index].clone()).collect();
    relay.tell_confirmed(opened.log, &mut batch);
    if faults::defect("delivery_id_changed_on_resend") {
        batch
            .iter_mut()
            .for_each(|message| message.redrives = fastrand::u32(..));
    }
    faults::point("relay.before_submit");
    let limit = group.settings.deadline;
    let telling = Telling::begin(group, relay, &batch);
    let answer = tokio::time::timeout(limit, async {
        let ticket = opened.producer.submit(batch).await?;
        Ok(ticket.await)
    });
    let silent = || format!("no confirmation within {limit:?}");
    let mut fates = match answer.instrument(telling.span()).await {
        Ok(Ok(fates)) => fates,
        Ok(Err(error)) => {
            telling.refused();
            relay.distrust();
            return Ok(Err(error));
        }
        Err(_) => vec![Fate::Unknown(silent()); wave.len()],
    };
    faults::point("relay.after_submit");
    fates.resize(wave.len(), Fate::Unknown("the broker said nothing of it".to_owned()));
    telling.told(
        wave.iter()
            .map(|index| messages[*index].message.envelope.topic.as_str()),
        &fates,
    );
    if faults::defect("refused_counted_as_confirmed") {
        let refused = |fate: &&mut Fate| matches!(fate, Fate::Refused(_) | Fate::Behind);
        fates
            .iter_mut()
            .filter(refused)
            .for_each(|fate| *fate = Fate::Confirmed);
    }
    // A producer that has left something in doubt is not used again. What has answered before may be another one now, or
    // have gone back.
    match fates.iter().any(|fate| matches!(fate, Fate::Unknown(_) | Fate::Lost)) {
        true => relay.distrust(),
        false if fates.contains(&Fate::Fenced) => {}
        false => relay.give_back(opened),
    }
    if fates.contains(&Fate::Lost) {
        match open(group, relay).await? {
            Ok(producer) => relay.give_back(producer),
            Err(error) => return Ok(Err(error)),
        }
        let lost = |fate: &&mut Fate| **fate == Fate::Lost;
        let why = "the broker had less than it had confirmed, and then it had not";
        fates
            .iter_mut()
            .filter(lost)
            .for_each(|fate| *fate = Fate::Unknown(why.to_owned()));
    }
    Ok(Ok(fates))
}

/// A producer that nobody else uses, for a broker that was found to remember what we do.
async fn open<S: Backend>(group: &Group<S>, relay: &State) -> Result<Result<Verified, BrokerError>, Stopped> {
    let generation = match relay.producer() {
        Ok(producer) => return Ok(Ok(producer)),
        Err(generation) => generation,
    };
    let source = Source {
        log: group.store().log_status().await.map_err(Stopped::Store)?.identity,
        reader: group.name().clone(),
    };
    let opening = async {
        let mut producer = relay.outlet.producer(&source).await.map_err(Unverified::Broker)?;
        let lanes = verify(group, &source, &relay.place(), producer.as_mut()).await?;
        relay.compared(source.log, &lanes);
        Ok(Verified {
            producer,
            log: source.log,
            generation,
        })
    };
    let limit = group.settings.deadline;
    match tokio::time::timeout(limit, opening).await {
        Ok(Ok(producer)) => Ok(Ok(producer)),
        Ok(Err(Unverified::Broker(error))) => Ok(Err(error)),
        Ok(Err(Unverified::Store(error))) => Err(Stopped::Store(error)),
        Ok(Err(Unverified::Alarm(why))) => {
            group.note_trouble("nothing is relayed until somebody has looked", &why);
            relay.raise_alarm(why);
            Err(Stopped::Later)
        }
        Err(_) => Ok(Err(BrokerError::Unreachable(format!("no answer within {limit:?}")))),
    }
}

/// Keeps the breakers, by what the broker has told, and says what has changed.
fn note<'f, S: Backend>(
    group: &Group<S>,
    relay: &State,
    messages: &[Outgoing],
    told: impl Iterator<Item = Option<&'f Fate>> + Clone,
    trouble: Option<&str>,
) {
    if told.clone().flatten().any(|fate| *fate == Fate::Confirmed) {
        if relay.broker().succeeded() {
            tracing::info!(relay = %group.name(), broker = %relay.place(), "the broker takes messages again");
        }
    } else if let Some(why) = trouble
        && relay.broker().failed(relay.now())
    {
        group.note_trouble("the broker takes nothing; it is asked now and then", &why);
    }
    let mut topics = relay.topics();
    let mut blocked: HashMap<&str, &str> = HashMap::new();
    for (message, fate) in messages.iter().zip(told) {
        let topic = message.message.envelope.topic.as_str();
        match fate {
            Some(Fate::Blocked(why)) => {
                blocked.insert(topic, why);
            }
            Some(Fate::Confirmed) if !topics.is_empty() && topics.remove(topic).is_some() => {
                tracing::info!(relay = %group.name(), topic, "the topic takes messages again");
            }
            _ => {}
        }
    }
    for (topic, why) in blocked {
        if topics.entry(topic.to_owned()).or_default().failed(relay.now()) {
            tracing::warn!(relay = %group.name(), topic, why, "the topic takes nothing; it is asked now and then");
        }
    }
}
