//! What recorders of metrics and traces are told of a batch at the broker.

use crate::{
    group::Group,
    meter::{Ended, Meter},
    relay::State,
    span,
};
use eventloom_core::ports::{Backend, Fate, Outgoing};
use std::time::Instant;
use tracing::Span;

/// A batch that is being handed over.
pub(super) struct Telling<'g> {
    meter: &'g Meter,
    span: Span,
    begun: Instant,
}

impl<'g> Telling<'g> {
    pub(super) fn begin<S: Backend>(group: &'g Group<S>, relay: &State, batch: &[Outgoing]) -> Self {
        Telling {
            meter: &group.meter,
            span: span::send(group.name(), relay, batch),
            begun: Instant::now(),
        }
    }

    pub(super) fn span(&self) -> Span {
        self.span.clone()
    }

    /// The broker took nothing of it.
    pub(super) fn refused(self) {
        self.ended(Ended::Unreachable);
    }

    /// The broker has said what became of each; what stands behind another one was not sent.
    pub(super) fn told<'t>(self, topics: impl Iterator<Item = &'t str> + Clone, fates: &[Fate]) {
        let kinds = [
            Ended::Well,
            Ended::Refused,
            Ended::Blocked,
            Ended::Unknown,
            Ended::Fenced,
        ];
        let mut worst = Ended::Well;
        for kind in kinds {
            let mut of_kind = topics
                .clone()
                .zip(fates)
                .filter(|(_, fate)| ended(fate) == Some(kind))
                .map(|(topic, _)| topic)
                .peekable();
            if of_kind.peek().is_some() {
                worst = kind;
                self.meter.sent(of_kind, kind);
            }
        }
        self.ended(worst);
    }

    fn ended(self, ended: Ended) {
        self.meter.operation(self.begun.elapsed(), ended);
        span::sent(&self.span, ended);
    }
}

fn ended(fate: &Fate) -> Option<Ended> {
    match fate {
        Fate::Confirmed => Some(Ended::Well),
        Fate::Refused(_) => Some(Ended::Refused),
        Fate::Blocked(_) => Some(Ended::Blocked),
        Fate::Unknown(_) | Fate::Lost => Some(Ended::Unknown),
        Fate::Fenced => Some(Ended::Fenced),
        Fate::Behind => None,
    }
}
