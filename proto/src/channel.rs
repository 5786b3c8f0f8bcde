//! gRPC connections to another task.

use crate::cluster::addresses;
use crate::pb::GetStatusRequest;
use crate::service::WorkerServiceClient;
use crate::status::Status;
use futures::future::{BoxFuture, select_ok};
use graph::{Code, TaskName};
use hyper_util::client::legacy::connect::HttpConnector;
use parking_lot::Mutex;
use rustix::net::sockopt;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout_at};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};

/// The default time for which a connection to an unresponsive task is attempted.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(60);

/// Time limit of one connection attempt if several processes may serve the task.
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);
/// A call that times out after more than this duration may have been sent to a suspended process; later calls then
/// connect again, if several processes may serve the task.
const SUSPENDED_AFTER: Duration = Duration::from_secs(3);
/// Time for which a call waits for a task that has accepted no connection yet and refuses connections, unless the
/// policy is [`RetryPolicy::UntilThere`].
const REFUSAL_LIMIT: Duration = Duration::from_secs(1);

/// Flow-control windows in bytes: the protocol's maximum, because a tensor is needed as a whole.
const WINDOW: u32 = (1 << 31) - 1;
/// Maximum frame size in bytes that the peer may send; larger frames were no faster in measurements.
const FRAME: u32 = 1 << 20;
/// Time between HTTP/2 pings on a connection. gRPC servers close connections that ping more often than every
/// five minutes without data. A dead host is detected earlier by [`TCP_PROBE_AFTER`].
const PING_INTERVAL: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
pub const TCP_PROBE_AFTER: Duration = Duration::from_secs(10);
pub const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(5);
pub const TCP_PROBES: u32 = 3;
/// Time in ms after which a host that has not acknowledged sent bytes is dead. While bytes are in flight, TCP
/// sends no keepalive probes.
pub const TCP_UNACKNOWLEDGED: u32 = 25_000;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A cancellation that arrives at most this long before a call's deadline counts as a timeout, because the
/// peer enforces the deadline too and may be early.
const LATE_MARGIN: Duration = Duration::from_millis(20);
/// Maximum number of times that one call is sent.
const MAX_ATTEMPTS: usize = 10;

/// Returns the incoming connections of a listener, with TCP options that detect dead hosts.
pub fn incoming(listener: TcpListener) -> TcpIncoming {
    // The connections inherit the option from the listener. A system without this option detects a dead host
    // later.
    let _ = sockopt::set_tcp_user_timeout(&listener, TCP_UNACKNOWLEDGED);
    TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(TCP_PROBE_AFTER))
        .with_keepalive_interval(Some(TCP_PROBE_INTERVAL))
        .with_keepalive_retries(Some(TCP_PROBES))
}

/// Returns the client end of a gRPC connection to `address`, to be used with [`connect`]; `None` if `address`
/// is not `host:port`.
pub fn endpoint(address: &str) -> Option<Endpoint> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok()?;
    endpoint.uri().port()?;
    let endpoint = endpoint
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .http2_keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    Some(endpoint)
}

/// Returns the connector that an [`endpoint`] needs to make its connections.
fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(TCP_PROBE_AFTER));
    connector.set_keepalive_interval(Some(TCP_PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(TCP_PROBES));
    connector.set_tcp_user_timeout(Some(Duration::from_millis(TCP_UNACKNOWLEDGED.into())));
    connector
}

/// Connects to the process at an endpoint. The future is boxed, so that the gRPC client is compiled in this crate and
/// not again in each crate that connects.
pub fn connect(endpoint: &Endpoint) -> BoxFuture<'_, Result<Channel, tonic::transport::Error>> {
    Box::pin(endpoint.connect_with_connector(connector()))
}

/// Returns a channel to the process at an endpoint that connects at the first call.
///
/// # Panics
/// Outside a tokio runtime.
pub fn connect_lazily(endpoint: &Endpoint) -> Channel {
    endpoint.connect_with_connector_lazy(connector())
}

/// Another task and the connections to it, which are made at first use and again after they broke.
pub struct Peer {
    task: TaskName,
    address: Arc<str>,
    /// Endpoints of the processes that may serve the task; one of them accepts connections.
    endpoints: Box<[Endpoint]>,
    connect_deadline: Duration,
    /// Connections that calls use in rotation, because one connection is limited to one TCP stream and one
    /// core at each end.
    channels: Box<[ChannelCell]>,
    next: AtomicUsize,
    /// Set once a connection was made; a task that refuses connections after that has exited.
    connected: AtomicBool,
}

type ChannelCell = Mutex<Arc<OnceCell<Channel>>>;

impl Peer {
    /// Creates a peer without connecting. `address` is `host:port`, or several such addresses (see
    /// [`addresses`]).
    ///
    /// # Errors
    /// `InvalidArgument` if an address is malformed.
    pub fn new(
        task: TaskName,
        address: &str,
        connect_deadline: Duration,
        connections: usize,
    ) -> Result<Peer, Status> {
        let endpoints = addresses(address).map(endpoint).collect::<Option<_>>();
        let endpoints =
            endpoints.ok_or_else(|| Status::invalid(format!("'{address}' is no address for {task}")))?;
        let channels = (0..connections.max(1)).map(|_| ChannelCell::default()).collect();
        Ok(Peer {
            task,
            address: address.into(),
            endpoints,
            connect_deadline,
            channels,
            next: AtomicUsize::new(0),
            connected: AtomicBool::new(false),
        })
    }

    /// Returns the name of the task.
    pub fn task(&self) -> &TaskName {
        &self.task
    }

    /// Returns the address of the task, as it was passed to [`Peer::new`].
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the next connection in rotation, and connects if there is none.
    ///
    /// # Errors
    /// `Unavailable` naming task and address after the connect deadline, or earlier if `retry` does not wait
    /// for the task; `DeadlineExceeded` if `deadline` is earlier.
    async fn channel(&self, retry: RetryPolicy, deadline: Option<Instant>) -> Result<Channel, Status> {
        let index = self.next.fetch_add(1, Ordering::Relaxed) % self.channels.len();
        let cell = self.channels[index].lock().clone();
        Ok(cell.get_or_try_init(|| self.connect(retry, deadline)).await?.clone())
    }

    async fn connect(&self, retry: RetryPolicy, deadline: Option<Instant>) -> Result<Channel, Status> {
        let start = Instant::now();
        let own_end = start + self.connect_deadline;
        let end = deadline.map_or(own_end, |d| d.min(own_end));
        let refused_until = match retry {
            RetryPolicy::UntilThere => None,
            _ if self.connected.load(Ordering::Relaxed) => Some(start),
            _ => Some(start + REFUSAL_LIMIT),
        };
        let code = if end < own_end { Code::DeadlineExceeded } else { Code::Unavailable };
        let mut pause = Pause::default();
        let mut last = String::from("it does not answer");
        loop {
            // The time limit of an attempt lets the loop find a process that starts to serve while another
            // process does not answer.
            let attempt =
                if self.endpoints.len() > 1 { end.min(Instant::now() + ATTEMPT_LIMIT) } else { end };
            match timeout_at(attempt.into(), self.connect_any()).await {
                Ok(Ok(channel)) => {
                    self.connected.store(true, Ordering::Relaxed);
                    return Ok(channel);
                }
                Ok(Err(error)) => {
                    last = innermost(&*error);
                    if is_refusal(&*error) && refused_until.is_some_and(|until| Instant::now() >= until) {
                        return Err(self.cannot_reach(Code::Unavailable, &last));
                    }
                }
                Err(_) => {}
            }
            let next = pause.next();
            if Instant::now() + next >= end {
                return Err(self.cannot_reach(code, &last));
            }
            sleep(next).await;
        }
    }

    /// Connects to the task's process; if several may serve the task, to the first that answers. The error is that of
    /// the last attempt.
    async fn connect_any(&self) -> Result<Channel, Box<dyn StdError + Send + Sync>> {
        if let [only] = &*self.endpoints {
            return Ok(connect(only).await?);
        }
        select_ok(self.endpoints.iter().map(|each| Box::pin(connect_and_probe(each))))
            .await
            .map(|(channel, _)| channel)
    }

    fn cannot_reach(&self, code: Code, cause: &str) -> Status {
        Status::new(code, format!("{} at {} cannot be reached: {cause}", self.task, self.address))
    }

    /// Drops the connections, so that later calls connect again.
    fn reset(&self) {
        for cell in &self.channels {
            *cell.lock() = Arc::default();
        }
    }

    /// Makes one call with its deadline on the next connection in rotation, and repeats it if the task was
    /// unavailable and `retry` allows it or the call was never sent. Errors of the transport, unlike the
    /// callee's errors, name task and address.
    pub async fn call<T, F>(
        &self,
        method: &str,
        retry: RetryPolicy,
        deadline: Option<Instant>,
        send: impl Fn(Channel) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<T, tonic::Status>>,
    {
        let mut pause = Pause::default();
        let mut attempt = 1;
        let start = Instant::now();
        loop {
            let channel = self.channel(retry, deadline).await?;
            let outcome = match deadline {
                Some(deadline) => timeout_at(deadline.into(), send(channel)).await,
                None => Ok(send(channel).await),
            };
            let (status, never_sent) = match outcome {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(status)) => self.failure(method, status, deadline),
                Err(_) => {
                    if self.endpoints.len() > 1 && start.elapsed() > SUSPENDED_AFTER {
                        // The serving process may be suspended, so later calls look for another process that
                        // serves the task.
                        self.reset();
                    }
                    return Err(self.deadline_exceeded(method));
                }
            };
            let again = status.code == Code::Unavailable && (never_sent || retry != RetryPolicy::Never);
            let delay = pause.next();
            if !again || attempt == MAX_ATTEMPTS || deadline.is_some_and(|d| Instant::now() + delay >= d) {
                return Err(status);
            }
            attempt += 1;
            sleep(delay).await;
        }
    }

    /// Converts the status of a failed call, and returns whether no byte of the call left this process.
    fn failure(&self, method: &str, received: tonic::Status, deadline: Option<Instant>) -> (Status, bool) {
        // Both ends enforce the deadline; whichever ends the call first, the caller gets the same error.
        let is_late = deadline.is_some_and(|d| Instant::now() + LATE_MARGIN >= d);
        if is_late && received.code() == tonic::Code::Cancelled {
            return (self.deadline_exceeded(method), false);
        }
        let Some(source) = StdError::source(&received) else {
            if received.code() != tonic::Code::Unavailable {
                return (received.into(), false);
            }
            return (self.unreachable(method, received.message()), false);
        };
        self.reset();
        (self.unreachable(method, &innermost(source)), is_refusal(source))
    }

    fn unreachable(&self, method: &str, cause: &str) -> Status {
        let text = format!("{method} to {} at {} failed: {cause}", self.task, self.address);
        Status::new(Code::Unavailable, text)
    }

    fn deadline_exceeded(&self, method: &str) -> Status {
        Status::new(
            Code::DeadlineExceeded,
            format!("{method} to {} at {} did not end by its deadline", self.task, self.address),
        )
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} at {})", self.task, self.address)
    }
}

/// Connects to a process and makes a call, because a suspended process accepts connections too.
async fn connect_and_probe(endpoint: &Endpoint) -> Result<Channel, Box<dyn StdError + Send + Sync>> {
    let channel = connect(endpoint).await?;
    WorkerServiceClient::new(channel.clone()).get_status(GetStatusRequest::default()).await?;
    Ok(channel)
}

/// The rule that decides if a call may be sent again when its outcome is unknown, and how long it waits for a
/// task that refuses connections.
///
/// A task that was connected before and refuses connections has exited, and its session state is lost.
/// Therefore only calls that open a session wait for it to restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// The call may be sent again even if its outcome is unknown.
    Harmless,
    /// The call may be sent again even if its outcome is unknown, and waits for the task to start, up to the call's
    /// deadline.
    UntilThere,
    Never,
}

/// The delays between the attempts of a call: each is twice the previous one, up to [`LONGEST_PAUSE`].
#[derive(Debug)]
struct Pause(Duration);

impl Default for Pause {
    fn default() -> Pause {
        Pause(FIRST_PAUSE)
    }
}

impl Pause {
    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LONGEST_PAUSE);
        now
    }
}

fn is_refusal(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|e| {
        e.downcast_ref::<std::io::Error>().is_some_and(|io| {
            matches!(
                io.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::AddrNotAvailable
            )
        })
    })
}

/// Returns the message of the innermost source of an error.
pub fn innermost(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn StdError + 'static)| (*e).source())
}
