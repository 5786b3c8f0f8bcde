//! The accept loop, and the dispatch of calls to services.

use crate::call::{Answer, Call};
use crate::connection;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;

/// Pause after a connection could not be accepted, for instance because the process has no free file
/// descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);

/// A gRPC service, which answers calls. Dropping the future of an answer cancels the call.
pub trait Service: Send + Sync + 'static {
    fn call(&self, call: Call) -> BoxFuture<'static, Answer>;
}

/// The services that a server offers, by their protobuf names.
#[derive(Default)]
pub struct Services {
    all: Vec<(&'static str, Box<dyn Service>)>,
}

impl Services {
    /// Adds a service under its protobuf name, such as `tensorflow.WorkerService`.
    #[must_use]
    pub fn with<S: Service + NamedService>(mut self, service: S) -> Services {
        self.all.push((S::NAME, Box::new(service)));
        self
    }

    /// Dispatches a call to the service that its path names; a call of an unknown service is answered with
    /// `Unimplemented`.
    pub(crate) fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        let name = call.path().strip_prefix('/').and_then(|path| path.split_once('/')).map(|(name, _)| name);
        match self.all.iter().find(|(known, _)| Some(*known) == name) {
            Some((_, service)) => service.call(call),
            None => {
                let text = format!("there is no service for {}", call.path());
                Box::pin(std::future::ready(Answer::Failure(Status::unimplemented(text))))
            }
        }
    }

    /// Serves the clients on `incoming` until `stop` is ready, and then answers the calls in progress.
    /// Dropping the future ends all connections at once.
    pub fn serve<'a>(
        self,
        incoming: impl Stream<Item = io::Result<TcpStream>> + Send + 'a,
        stop: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.serve_until(Box::pin(incoming), Box::pin(stop)))
    }

    /// Serves like [`Services::serve`], with boxed arguments, so that the server is compiled once in this
    /// crate and not in each crate that uses it.
    async fn serve_until(
        self,
        mut incoming: BoxStream<'_, io::Result<TcpStream>>,
        mut stop: BoxFuture<'_, ()>,
    ) {
        let services = Arc::new(self);
        let stopping = CancellationToken::new();
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut stop => break,
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!("a connection ended by a panic: {error}");
                    }
                }
                next = incoming.next() => match next {
                    Some(Ok(socket)) => {
                        connections.spawn(connection::serve(socket, services.clone(), stopping.clone()));
                    }
                    Some(Err(error)) => {
                        tracing::warn!("a connection cannot be taken: {error}");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                    None => break,
                },
            }
        }
        stopping.cancel();
        while connections.join_next().await.is_some() {}
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|(name, _)| name)).finish()
    }
}

/// Services that tonic generates are served without an adapter.
impl<S> Service for S
where
    S: tower_service::Service<
            http::Request<Body>,
            Response = http::Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
        match call.into_request() {
            Ok(request) => {
                let answered = tower_service::Service::call(&mut self.clone(), request);
                Box::pin(async move {
                    match answered.await {
                        Ok(response) => Answer::Response(response),
                        Err(never) => match never {},
                    }
                })
            }
            Err(status) => Box::pin(std::future::ready(Answer::Failure(status))),
        }
    }
}
