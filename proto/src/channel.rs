//! Connections to another task.

use crate::cluster::addresses;
use crate::pb::GetStatusRequest;
use crate::service::WorkerServiceClient;
use crate::status::Status;
use futures::future::select_ok;
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

/// How long a task that does not answer is tried, unless told otherwise.
pub const CONNECT_DEADLINE: Duration = Duration::from_secs(60);

/// How long one attempt to connect to one of several processes takes at most.
const ATTEMPT: Duration = Duration::from_secs(2);
/// A call of one of several processes that is late after so long may be to one that is stopped.
const FROZEN: Duration = Duration::from_secs(3);
/// How long a task that refuses connections is tried by calls that do not wait for it to start.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Flow-control windows, bytes: the protocol's largest, since a tensor is wanted whole.
const WINDOW: u32 = (1 << 31) - 1;
/// Frames that the other side may send, bytes: larger ones measure no better.
const FRAME: u32 = 1 << 20;
/// gRPC servers close connections that ping more often than every five minutes without data; a dead host is
/// found sooner by [`TCP_PROBE_AFTER`].
const PING_INTERVAL: Duration = Duration::from_secs(330);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
pub const TCP_PROBE_AFTER: Duration = Duration::from_secs(10);
pub const TCP_PROBE_INTERVAL: Duration = Duration::from_secs(5);
pub const TCP_PROBES: u32 = 3;
/// While bytes are on their way nothing is probed: a host that has not acknowledged them for so long is dead, ms.
pub const TCP_UNACKNOWLEDGED: u32 = 25_000;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The other end's clock may be ahead by so much.
const LATE_MARGIN: Duration = Duration::from_millis(20);
/// Attempts at one call on connections that stood at first.
const ATTEMPTS: usize = 10;

/// The connections of a listener, with what finds dead hosts.
pub fn incoming(listener: TcpListener) -> TcpIncoming {
    // They have it from the listener. A system that has no such limit finds a dead host later.
    let _ = sockopt::set_tcp_user_timeout(&listener, TCP_UNACKNOWLEDGED);
    TcpIncoming::from(listener)
        .with_nodelay(Some(true))
        .with_keepalive(Some(TCP_PROBE_AFTER))
        .with_keepalive_interval(Some(TCP_PROBE_INTERVAL))
        .with_keepalive_retries(Some(TCP_PROBES))
}

/// The calling end of a connection with the same settings, to be made by a [`connector`]; `None` if `address` is not
/// `host:port`.
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

/// How an [`endpoint`] is to make its connections.
pub fn connector() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_keepalive(Some(TCP_PROBE_AFTER));
    connector.set_keepalive_interval(Some(TCP_PROBE_INTERVAL));
    connector.set_keepalive_retries(Some(TCP_PROBES));
    connector.set_tcp_user_timeout(Some(Duration::from_millis(TCP_UNACKNOWLEDGED.into())));
    connector
}

/// Another task and the connections to it, made at first use and again when they broke.
pub struct Peer {
    task: TaskName,
    address: Arc<str>,
    /// Of the processes that may serve the task; one of them takes connections.
    endpoints: Box<[Endpoint]>,
    connect_deadline: Duration,
    /// Calls take turns: one connection is one TCP stream, and one core at either end.
    lanes: Box<[Lane]>,
    next: AtomicUsize,
    /// It was there once: who refuses now has gone.
    connected: AtomicBool,
}

type Lane = Mutex<Arc<OnceCell<Channel>>>;

impl Peer {
    /// `address` is `host:port`, or several of those ([`addresses`]).
    ///
    /// # Errors
    /// `InvalidArgument` if that is no address.
    pub fn new(
        task: TaskName,
        address: &str,
        connect_deadline: Duration,
        connections: usize,
    ) -> Result<Peer, Status> {
        let endpoints = addresses(address).map(endpoint).collect::<Option<_>>();
        let endpoints =
            endpoints.ok_or_else(|| Status::invalid(format!("'{address}' is no address for {task}")))?;
        let lanes = (0..connections.max(1)).map(|_| Lane::default()).collect();
        Ok(Peer {
            task,
            address: address.into(),
            endpoints,
            connect_deadline,
            lanes,
            next: AtomicUsize::new(0),
            connected: AtomicBool::new(false),
        })
    }

    pub fn task(&self) -> &TaskName {
        &self.task
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// A connection that stood when it was last used.
    ///
    /// # Errors
    /// `Unavailable` naming task and address after the connect deadline, or as soon as `repeat` says;
    /// `DeadlineExceeded` if `deadline` is sooner.
    async fn channel(&self, repeat: Repeat, deadline: Option<Instant>) -> Result<Channel, Status> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let cell = self.lanes[turn].lock().clone();
        Ok(cell.get_or_try_init(|| self.connect(repeat, deadline)).await?.clone())
    }

    async fn connect(&self, repeat: Repeat, deadline: Option<Instant>) -> Result<Channel, Status> {
        let start = Instant::now();
        let own = start + self.connect_deadline;
        let end = deadline.map_or(own, |d| d.min(own));
        let patience = match repeat {
            Repeat::UntilThere => None,
            _ if self.connected.load(Ordering::Relaxed) => Some(start),
            _ => Some(start + REFUSED_FOR),
        };
        let code = if end < own { Code::DeadlineExceeded } else { Code::Unavailable };
        let mut pause = Pause::default();
        let mut last = String::from("it does not answer");
        loop {
            // One that is silent does not keep another from being found that has begun to serve.
            let attempt = if self.endpoints.len() > 1 { end.min(Instant::now() + ATTEMPT) } else { end };
            match timeout_at(attempt.into(), self.whoever_serves()).await {
                Ok(Ok(channel)) => {
                    self.connected.store(true, Ordering::Relaxed);
                    return Ok(channel);
                }
                Ok(Err(error)) => {
                    last = innermost(&*error);
                    if is_refusal(&*error) && patience.is_some_and(|until| Instant::now() >= until) {
                        return Err(self.not_there(Code::Unavailable, &last));
                    }
                }
                Err(_) => {}
            }
            let next = pause.next();
            if Instant::now() + next >= end {
                return Err(self.not_there(code, &last));
            }
            sleep(next).await;
        }
    }

    /// A connection to the task's process; of several, to whichever answers, or why the last of them did not.
    async fn whoever_serves(&self) -> Result<Channel, Box<dyn StdError + Send + Sync>> {
        if let [only] = &*self.endpoints {
            return Ok(only.connect_with_connector(connector()).await?);
        }
        select_ok(self.endpoints.iter().map(|each| Box::pin(answers(each)))).await.map(|(channel, _)| channel)
    }

    fn not_there(&self, code: Code, cause: &str) -> Status {
        Status::new(code, format!("{} at {} cannot be reached: {cause}", self.task, self.address))
    }

    /// Makes the next calls connect anew.
    fn reset(&self) {
        for lane in &self.lanes {
            *lane.lock() = Arc::default();
        }
    }

    /// One call with its deadline: on a connection of its own turn, tried again while that is safe and useful.
    /// Failures of the way there, unlike the callee's own, name task and address.
    pub async fn call<T, F>(
        &self,
        method: &str,
        repeat: Repeat,
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
            let channel = self.channel(repeat, deadline).await?;
            let outcome = match deadline {
                Some(deadline) => timeout_at(deadline.into(), send(channel)).await,
                None => Ok(send(channel).await),
            };
            let (status, never_sent) = match outcome {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(status)) => self.failure(method, status, deadline),
                Err(_) => {
                    if self.endpoints.len() > 1 && start.elapsed() > FROZEN {
                        // Another process may serve the task by now.
                        self.reset();
                    }
                    return Err(self.late(method));
                }
            };
            let again = status.code == Code::Unavailable && (never_sent || repeat != Repeat::Never);
            let rest = pause.next();
            if !again || attempt == ATTEMPTS || deadline.is_some_and(|d| Instant::now() + rest >= d) {
                return Err(status);
            }
            attempt += 1;
            sleep(rest).await;
        }
    }

    /// The failure in our terms, and whether no byte of the call left this process.
    fn failure(&self, method: &str, received: tonic::Status, deadline: Option<Instant>) -> (Status, bool) {
        // Both ends keep the deadline; whichever is first, to the caller it is one and the same.
        let is_late = deadline.is_some_and(|d| Instant::now() + LATE_MARGIN >= d);
        if is_late && received.code() == tonic::Code::Cancelled {
            return (self.late(method), false);
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

    fn late(&self, method: &str) -> Status {
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

/// A connection to a process that answers: one that is stopped takes connections, too.
async fn answers(endpoint: &Endpoint) -> Result<Channel, Box<dyn StdError + Send + Sync>> {
    let channel = endpoint.connect_with_connector(connector()).await?;
    WorkerServiceClient::new(channel.clone()).get_status(GetStatusRequest::default()).await?;
    Ok(channel)
}

/// Whether a call may be sent again when its fate is unknown, and how long it waits for a task that refuses
/// connections.
///
/// A task that was there before and refuses has gone, with all that a session had there: only who opens a session
/// waits for it to come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// It may be sent again.
    Harmless,
    /// It may be sent again, and waits until the task is there, up to its deadline.
    UntilThere,
    Never,
}

/// Pauses between attempts, each longer than the last.
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

/// What was at the bottom of a failure, in words.
pub fn innermost(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |e: &&'a (dyn StdError + 'static)| (*e).source())
}
