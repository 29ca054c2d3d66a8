//! Handlers of mode transaction: plain functions, or structs that hold their dependencies.

use crate::{context::Context, failure::Failed};
use eventloom_core::{BoxFuture, Classify, Event, Payload, ports::Store};
use serde::Serialize;
use std::{any::Any, future::Future, marker::PhantomData};

/// `async fn(E, &mut Context<'_>) -> Result<R, X>` as a trait.
///
/// One lifetime, not two: with two, the implied bound between them makes every `async fn` "not general enough".
pub trait HandlerFn<'a, S: Store, E>: Send + Sync {
    /// What it returns; stored with the inbox entry.
    type Output: Serialize + Send;
    /// How it fails.
    type Error: Classify;
    /// Its future.
    type Future: Future<Output = Result<Self::Output, Self::Error>> + Send + 'a;
    /// Calls it.
    fn call(&self, event: E, cx: &'a mut Context<'a, S>) -> Self::Future;
}

impl<'a, S: Store, E, F, Fut, R, X> HandlerFn<'a, S, E> for F
where
    F: Fn(E, &'a mut Context<'a, S>) -> Fut + Send + Sync,
    Fut: Future<Output = Result<R, X>> + Send + 'a,
    R: Serialize + Send,
    X: Classify,
{
    type Output = R;
    type Error = X;
    type Future = Fut;
    fn call(&self, event: E, cx: &'a mut Context<'a, S>) -> Fut {
        self(event, cx)
    }
}

/// A handler with dependencies: a struct that implements this.
///
/// # Contract
/// Runs inside the transaction of [`Context::connection`]; it may run more than once before that commits.
///
/// # Cancel safety
/// The future is dropped at its deadline and when the lease ends; the transaction is rolled back then.
pub trait Handle<S: Store>: Send + Sync + 'static {
    /// What it handles.
    type Event: Event;
    /// What it returns; stored with the inbox entry.
    type Output: Serialize + Send;
    /// How it fails.
    type Error: Classify;
    /// Handles one event.
    fn handle(
        &self,
        event: Self::Event,
        cx: &mut Context<'_, S>,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;
}

/// What [`Consumer::handle`](crate::Consumer::handle) takes: a plain async function, or a struct that implements [`Handle`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler on `{S}`",
    label = "a handler is `async fn(event: E, cx: &mut Context<'_>) -> Result<R, X>` with `E: Event`, `R: Serialize`, `X: Classify` and a future that is `Send`",
    note = "a handler with dependencies is a struct that implements `Handle`; a closure that captures is not a handler",
    note = "`Context` comes from the prelude of the store that the service runs on: `eventloom::postgres::prelude` or `eventloom::sqlite::prelude`"
)]
pub trait Handler<S: Store, M>: Send + Sync + 'static {
    /// What it handles.
    type Event: Event;
    #[doc(hidden)]
    fn run<'a>(&'a self, event: Self::Event, cx: &'a mut Context<'a, S>) -> BoxFuture<'a, Result<String, Flat>>;
}

/// Marks functions as handlers.
pub struct Function<E>(PhantomData<fn(E)>);
/// Marks structs as handlers.
pub struct Struct;

/// A handler's failure, before the engine looks at it.
#[doc(hidden)]
pub struct Flat(pub(crate) Failed);

pub(crate) fn flatten<S: Store, R: Serialize, X: Classify>(result: Result<R, X>) -> Result<String, Flat> {
    match result {
        Ok(value) => serde_json::to_string(&value).map_err(|error| {
            Flat(Failed::permanent(format!(
                "the result does not encode as JSON: {error}"
            )))
        }),
        Err(error) => {
            // The error itself, not only its sources: `#[error(transparent)]` hides a driver's error from the chain.
            let store = S::kind_of(&error);
            Err(Flat(Failed::of(&error, error.retry_class(), store)))
        }
    }
}

impl<S: Store, E: Event, F> Handler<S, Function<E>> for F
where
    F: for<'a> HandlerFn<'a, S, E> + 'static,
{
    type Event = E;
    fn run<'a>(&'a self, event: E, cx: &'a mut Context<'a, S>) -> BoxFuture<'a, Result<String, Flat>> {
        let future = self.call(event, cx);
        Box::pin(async move { flatten::<S, _, _>(future.await) })
    }
}

impl<S: Store, H: Handle<S>> Handler<S, Struct> for H {
    type Event = H::Event;
    fn run<'a>(&'a self, event: H::Event, cx: &'a mut Context<'a, S>) -> BoxFuture<'a, Result<String, Flat>> {
        Box::pin(async move { flatten::<S, _, _>(self.handle(event, cx).await) })
    }
}

/// A handler behind its event type, which decodes for it.
pub(crate) trait Erased<S: Store>: Send + Sync {
    fn run<'a>(
        &'a self,
        payload: Option<&'a Payload>,
        cx: &'a mut Context<'a, S>,
    ) -> BoxFuture<'a, Result<String, Failed>>;
}

pub(crate) struct Typed<H, M>(pub(crate) H, pub(crate) PhantomData<fn(M)>);

impl<S: Store, M: 'static, H: Handler<S, M>> Erased<S> for Typed<H, M> {
    fn run<'a>(
        &'a self,
        payload: Option<&'a Payload>,
        cx: &'a mut Context<'a, S>,
    ) -> BoxFuture<'a, Result<String, Failed>> {
        Box::pin(async move {
            // In here, so that a panic of the decoder is a failure like others.
            let event = decode::<H::Event>(payload)?;
            self.0.run(event, cx).await.map_err(|Flat(failed)| failed)
        })
    }
}

/// A payload as an event. A failure is permanent: the same bytes never decode later.
pub(crate) fn decode<E: Event>(payload: Option<&Payload>) -> Result<E, Failed> {
    let bytes = payload.map_or(&b"null"[..], Payload::bytes);
    serde_json::from_slice(bytes)
        .map_err(|error| Failed::permanent(format!("the payload does not decode as {}: {error}", E::TYPE)))
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the handler panicked: {}", text.unwrap_or("no message"))
}
