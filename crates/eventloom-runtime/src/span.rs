//! Spans by OpenTelemetry's conventions for messaging: `publish` creates a message, `send` relays a batch, `process`
//! handles one message. What handles or relays begins a trace of its own and is *linked* to the contexts in which its
//! messages were created, since a batch has many and a message many readers.
//!
//! Without the feature `otel` they are spans of `tracing`, and rows get no context.

use crate::{
    batch::Item,
    failure::Failed,
    meter::{Ended, SYSTEM},
    relay::State,
};
use eventloom_core::{ConsumerName, NewEvent, ports::Outgoing};
use std::borrow::Cow;
use tracing::{Span, field::Empty};

/// Links of one span: what the SDK keeps unless told otherwise.
#[cfg(feature = "otel")]
const LINKS_MAX: usize = 128;

/// `traceparent` and `tracestate`.
type Context = (String, Option<String>);

/// Around the publication of rows.
#[doc(hidden)]
pub fn publish_span(rows: &[NewEvent]) -> Span {
    let Some(first) = rows.first() else {
        return Span::none();
    };
    let span = tracing::info_span!(
        target: "eventloom::span",
        "publish",
        otel.name = Empty,
        otel.kind = "producer",
        otel.status_code = Empty,
        error.type = Empty,
        messaging.system = SYSTEM,
        messaging.operation.name = "publish",
        messaging.operation.type = "send",
        messaging.destination.name = Empty,
        messaging.message.id = Empty,
        messaging.batch.message_count = Empty,
    );
    if !span.is_disabled() {
        let topics = rows.iter().map(|row| row.topic().as_str());
        name(&span, "publish", topics);
        match rows.len() {
            1 => span.record("messaging.message.id", tracing::field::display(first.id())),
            more => span.record("messaging.batch.message_count", more),
        };
    }
    span
}

/// The rows, with the context of this span where they carry none: what handles them links to it.
#[doc(hidden)]
pub fn in_span<'r>(span: &Span, rows: &'r [NewEvent]) -> Cow<'r, [NewEvent]> {
    if rows.iter().all(|row| row.traceparent().is_some()) {
        return Cow::Borrowed(rows);
    }
    let Some(context) = context_within(span) else {
        return Cow::Borrowed(rows);
    };
    Cow::Owned(rows.iter().map(|row| stamped(row.clone(), &context)).collect())
}

/// As [`in_span`], for one row.
#[doc(hidden)]
pub fn row_in_span(span: &Span, row: NewEvent) -> NewEvent {
    match context_within(span) {
        Some(context) => stamped(row, &context),
        None => row,
    }
}

fn stamped(row: NewEvent, (traceparent, tracestate): &Context) -> NewEvent {
    match row.traceparent() {
        Some(_) => row,
        None => row.with_trace(traceparent.clone(), tracestate.clone()),
    }
}

fn context_within(span: &Span) -> Option<Context> {
    match span.is_disabled() {
        true => current_context(),
        false => context_of(span),
    }
}

/// Notes how a publication ended.
#[doc(hidden)]
pub fn published<T, E>(span: &Span, result: &Result<T, E>) {
    if result.is_err() {
        failed(span, "store");
    }
}

/// Around one run of a handler.
pub(crate) fn process(consumer: &ConsumerName, item: &Item) -> Span {
    let envelope = &item.row.envelope;
    let span = tracing::info_span!(
        target: "eventloom::span",
        parent: None,
        "process",
        otel.name = %format_args!("process {}", envelope.topic),
        otel.kind = "consumer",
        otel.status_code = Empty,
        error.type = Empty,
        messaging.system = SYSTEM,
        messaging.operation.name = "process",
        messaging.operation.type = "process",
        messaging.destination.name = envelope.topic.as_str(),
        messaging.destination.partition.id = %item.row.lane,
        messaging.consumer.group.name = consumer.as_str(),
        messaging.message.id = envelope.id.as_str(),
        messaging.message.conversation_id = envelope.correlationid.as_deref(),
        eventloom.attempt = item.attempt,
    );
    link(&span, [envelope]);
    span
}

/// Notes how a handler ended.
pub(crate) fn processed<T>(span: &Span, result: &Result<T, Failed>) {
    if let Err(error) = result
        && let Some(class) = Ended::from(error.class).error_type()
    {
        failed(span, class);
    }
}

/// Around a batch, from its submission to its confirmation.
pub(crate) fn send(name_of_relay: &ConsumerName, relay: &State, batch: &[Outgoing]) -> Span {
    let span = tracing::info_span!(
        target: "eventloom::span",
        parent: None,
        "send",
        otel.name = Empty,
        // The context that consumers link to was created by `publish`.
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        messaging.system = SYSTEM,
        messaging.operation.name = "send",
        messaging.operation.type = "send",
        messaging.destination.name = Empty,
        messaging.consumer.group.name = name_of_relay.as_str(),
        messaging.batch.message_count = batch.len(),
        server.address = %relay.place(),
    );
    if !span.is_disabled() {
        name(
            &span,
            "send",
            batch.iter().map(|message| message.message.envelope.topic.as_str()),
        );
        link(&span, batch.iter().map(|message| &message.message.envelope));
    }
    span
}

/// Notes how a batch ended.
pub(crate) fn sent(span: &Span, ended: Ended) {
    if let Some(error) = ended.error_type() {
        failed(span, error);
    }
}

fn failed(span: &Span, error_type: &str) {
    span.record("error.type", error_type);
    span.record("otel.status_code", "ERROR");
}

/// Names a span after its topic when there is one alone.
fn name<'t>(span: &Span, operation: &str, mut topics: impl Iterator<Item = &'t str>) {
    let first = topics.next();
    match first.filter(|first| topics.all(|topic| topic == *first)) {
        Some(topic) => {
            span.record(
                "otel.name",
                tracing::field::display(format_args!("{operation} {topic}")),
            );
            span.record("messaging.destination.name", topic);
        }
        None => {
            span.record("otel.name", operation);
        }
    }
}

pub(crate) use context::current_context;
use context::{context_of, link};

/// W3C contexts, from spans and on links.
#[cfg(feature = "otel")]
mod context {
    use super::{Context, LINKS_MAX};
    use eventloom_core::Envelope;
    use opentelemetry::trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState};
    use std::str::FromStr;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    /// What every receiver must take (W3C); a longer one is left out.
    const TRACESTATE_BYTES_MAX: usize = 512;

    /// `traceparent` and `tracestate` of the span in which this is called.
    pub(crate) fn current_context() -> Option<Context> {
        context_of(&Span::current()).or_else(|| written(opentelemetry::Context::current().span().span_context()))
    }

    pub(super) fn context_of(span: &Span) -> Option<Context> {
        written(span.context().span().span_context())
    }

    pub(super) fn link<'e>(span: &Span, envelopes: impl IntoIterator<Item = &'e Envelope>) {
        if span.is_disabled() {
            return;
        }
        let contexts = envelopes.into_iter().filter_map(created_in);
        // Messages of one publication share a context.
        let mut last = None;
        let distinct = contexts.filter(|context| last.replace(context.clone()).as_ref() != Some(context));
        for context in distinct.take(LINKS_MAX) {
            span.add_link(context);
        }
    }

    fn written(context: &SpanContext) -> Option<Context> {
        if !context.is_valid() {
            return None;
        }
        let (trace, span, flags) = (context.trace_id(), context.span_id(), context.trace_flags());
        let sampled = u8::from(flags.is_sampled());
        let state = context.trace_state().header();
        let state = Some(state).filter(|state| !state.is_empty() && state.len() <= TRACESTATE_BYTES_MAX);
        Some((format!("00-{trace}-{span}-{sampled:02x}"), state))
    }

    /// Other programs may write anything there: what is no context is none.
    fn created_in(envelope: &Envelope) -> Option<SpanContext> {
        let mut parts = envelope.traceparent.as_deref()?.split('-');
        let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let later_version = version != "00" && parts.next().is_some();
        if version.len() != 2 || version == "ff" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
            return None;
        }
        if !later_version && parts.next().is_some() {
            return None;
        }
        let state = envelope.tracestate.as_deref().unwrap_or_default();
        let context = SpanContext::new(
            TraceId::from_hex(trace).ok()?,
            SpanId::from_hex(span).ok()?,
            TraceFlags::new(u8::from_str_radix(flags, 16).ok()?),
            true,
            TraceState::from_str(state).unwrap_or_default(),
        );
        context.is_valid().then_some(context)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use eventloom_core::OffsetDateTime;

        fn envelope(traceparent: &str, tracestate: Option<&str>) -> Envelope {
            let mut envelope = Envelope::new("id", "orders", "order.placed", OffsetDateTime::UNIX_EPOCH);
            envelope.traceparent = Some(traceparent.to_owned());
            envelope.tracestate = tracestate.map(str::to_owned);
            envelope
        }

        /// What is read is what would be written, or nothing.
        fn check(traceparent: &str, tracestate: Option<&str>, written_as: Option<&str>) {
            let context = created_in(&envelope(traceparent, tracestate));
            let found = context.as_ref().and_then(written);
            let expected = written_as.map(|text| (text.to_owned(), tracestate.map(str::to_owned)));
            assert_eq!(found, expected, "{traceparent}");
        }

        #[test]
        fn contexts_are_read_as_they_are_written() {
            let whole = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
            check(whole, None, Some(whole));
            check(whole, Some("congo=t61rcWkgMzE,rojo=00f067"), Some(whole));
            let unsampled = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
            check(unsampled, None, Some(unsampled));
            check(&format!("cc{}-what-comes-later", &whole[2..]), None, Some(whole));
        }

        #[test]
        fn what_is_no_context_is_none() {
            let texts = [
                "",
                "hello",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                "00-0af7651916cd43dd8448eb211c80319g-b7ad6b7169203331-01",
            ];
            for text in texts {
                check(text, None, None);
            }
        }
    }
}

#[cfg(not(feature = "otel"))]
mod context {
    use super::Context;
    use eventloom_core::Envelope;
    use tracing::Span;

    pub(crate) fn current_context() -> Option<Context> {
        None
    }

    pub(super) fn context_of(_span: &Span) -> Option<Context> {
        None
    }

    pub(super) fn link<'e>(_span: &Span, _envelopes: impl IntoIterator<Item = &'e Envelope>) {}
}
