//! Streams of events to debuggers of clients (`grpc://host:port/path` among the debug URLs). A debugger replies with the
//! states of its gates: watches that it enables, disables, or at which steps stop.

use crate::channel::{connect, endpoint, innermost};
use crate::codec::{MessageCodec, WireMessage};
use crate::pb::EventReply;
use crate::pb::event_reply::{DebugOpStateChange, debug_op_state_change::State};
use crate::status::Status;
use bytes::{Buf, BufMut, Bytes};
use futures::Stream;
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::codec::{DecodeBuf, EncodeBuf};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};

/// The scheme of the URLs of debuggers.
pub const SCHEME: &str = "grpc://";

const METHOD: &str = "/tensorflow.EventListener/SendEvents";

/// The number of events that wait to be written to the connection.
const MOST_WAITING: usize = 8;

/// The largest number of URLs whose streams are kept.
const MOST_STREAMS: usize = 1000;

/// The time for which a debugger may refuse connections, because it may just be starting.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);
const REFUSAL_PAUSE: Duration = Duration::from_millis(50);

/// The time within which a debugger must connect, take an event, or reply to an event that is no tensor.
const PEER_LIMIT: Duration = Duration::from_secs(60);

/// The time for which the close of a stream waits for the debugger's last replies.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Encoded `Event` messages, which are made when they are sent.
pub type Events = Box<dyn Iterator<Item = Vec<u8>> + Send>;

/// The streams of one process, one a URL. They are kept for the states of their gates.
#[derive(Debug, Default)]
pub struct EventStreams {
    streams: Mutex<FxHashMap<String, Arc<EventStream>>>,
}

impl EventStreams {
    /// Returns the stream to a URL. It connects at its first event.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that is not `grpc://host:port` with an optional path; `ResourceExhausted` for more than
    /// 1,000 URLs in use.
    pub fn stream(&self, url: &str) -> Result<Arc<EventStream>, Status> {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(url) {
            return Ok(stream.clone());
        }
        let address = url.strip_prefix(SCHEME).map(|rest| rest.split('/').next().unwrap_or_default());
        let Some(endpoint) = address.and_then(endpoint) else {
            return Err(Status::invalid(format!(
                "Invalid debug target URL: {url}; it must be {SCHEME}host:port"
            )));
        };
        if streams.len() >= MOST_STREAMS {
            streams.retain(|_, stream| Arc::strong_count(stream) > 1);
        }
        if streams.len() >= MOST_STREAMS {
            let text = format!("steps of this task watch tensors for {MOST_STREAMS} debuggers already");
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let stream = Arc::new(EventStream {
            url: url.to_owned(),
            endpoint,
            connection: tokio::sync::Mutex::default(),
            gates: Arc::default(),
            runs: Mutex::default(),
        });
        streams.insert(url.to_owned(), stream.clone());
        Ok(stream)
    }
}

/// Returns the path of a debugger's URL, with its slash.
pub fn path_of(url: &str) -> &str {
    let address = url.strip_prefix(SCHEME).unwrap_or(url);
    address.find('/').map_or("", |start| &address[start..])
}

/// The state in which a debugger has put a watch. It only matters for debug ops with the attribute `gated_grpc`, which
/// send nothing while their gate is closed, and for breakpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    #[default]
    Closed,
    /// Tensors are sent.
    ReadOnly,
    /// A breakpoint: tensors are sent, and the step goes on after the debugger's reply.
    ReadWrite,
}

/// The gates of a debugger by the names of their watches, `node:slot:op`.
type Gates = Mutex<FxHashMap<String, Gate>>;

/// The stream of events to one URL. Events are sent in the order of the calls, each after the reply to the one before, if
/// the debugger replies to it.
#[derive(Debug)]
pub struct EventStream {
    url: String,
    endpoint: Endpoint,
    connection: tokio::sync::Mutex<Option<Connection>>,
    gates: Arc<Gates>,
    /// The number of runs that use the stream.
    runs: Mutex<usize>,
}

/// An open call.
#[derive(Debug)]
struct Connection {
    events: mpsc::Sender<EncodedEvent>,
    replies: Arc<Replies>,
    /// The task that reads the replies; it ends when the call does.
    reader: JoinHandle<()>,
}

/// The replies of a call.
#[derive(Debug, Default)]
struct Replies {
    state: Mutex<ReplyState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct ReplyState {
    /// The number of events so far to which the debugger replies.
    expected: u64,
    received: u64,
    /// The reason for which the call has ended.
    end: Option<String>,
}

impl EventStream {
    /// Returns the state of a watch, named `node:slot:op`.
    pub fn gate(&self, watch: &str) -> Gate {
        self.gates.lock().get(watch).copied().unwrap_or_default()
    }

    /// Sends the names and numbers of a run, and waits for the reply. [`EventStream::end_run`] ends the run.
    ///
    /// # Errors
    /// Those of [`EventStream::send_graph`].
    pub async fn begin_run(&self, event: Vec<u8>) -> Result<(), Status> {
        *self.runs.lock() += 1;
        self.send_graph(Box::new(std::iter::once(event))).await
    }

    /// Sends a graph, and waits for the reply.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the URL, if the debugger cannot be reached, ends the stream, or takes longer than a
    /// minute to accept an event or to reply.
    pub async fn send_graph(&self, events: Events) -> Result<(), Status> {
        let mut connection = self.connection.lock().await;
        let connection = self.open(&mut connection).await?;
        let number = self.write(connection, events, true).await?;
        timeout(PEER_LIMIT, self.received(connection, number))
            .await
            .map_err(|_| self.failed("it has not replied for a minute"))?
    }

    /// Sends the tensor of a watch, and waits for the debugger's reply if the watch is a breakpoint. Other events wait
    /// meanwhile, because the reply may change their gates.
    ///
    /// # Errors
    /// Those of [`EventStream::send_graph`], but a breakpoint may take any time.
    pub async fn send_tensor(&self, watch: &str, events: Events) -> Result<(), Status> {
        let mut connection = self.connection.lock().await;
        let connection = self.open(&mut connection).await?;
        let is_breakpoint = self.gate(watch) == Gate::ReadWrite;
        let number = self.write(connection, events, is_breakpoint).await?;
        if is_breakpoint { self.received(connection, number).await } else { Ok(()) }
    }

    /// Ends a run that [`EventStream::begin_run`] has begun. The end of the last run ends the stream and waits for the
    /// debugger's last replies; the next event opens it again.
    ///
    /// # Errors
    /// `FailedPrecondition` if the debugger has ended the call with an error, or has not ended it after ten seconds; it is
    /// cut off then.
    pub async fn end_run(&self) -> Result<(), Status> {
        let is_used = {
            let mut runs = self.runs.lock();
            *runs = runs.saturating_sub(1);
            *runs > 0
        };
        if is_used {
            return Ok(());
        }
        let end = Instant::now() + CLOSE_LIMIT;
        let cut_off = || self.failed("it keeps a stream open that has ended");
        let connection = timeout_at(end, self.connection.lock()).await.map_err(|_| cut_off())?.take();
        let Some(Connection { events, replies, mut reader }) = connection else { return Ok(()) };
        drop(events);
        if timeout_at(end, &mut reader).await.is_err() {
            reader.abort();
            replies.end("it was cut off".to_owned());
            return Err(cut_off());
        }
        match &replies.state.lock().end {
            Some(end) if !end.is_empty() => {
                Err(self.failed(&format!("it has ended the stream of events: {end}")))
            }
            _ => Ok(()),
        }
    }

    /// Writes events, and returns the number of the reply to the last, if there is one.
    async fn write(&self, connection: &Connection, events: Events, is_answered: bool) -> Result<u64, Status> {
        let mut events = events.peekable();
        let mut number = 0;
        while let Some(event) = events.next() {
            let permit = timeout(PEER_LIMIT, connection.events.reserve()).await;
            let permit = permit.map_err(|_| self.failed("it has accepted no event for a minute"))?;
            let permit = permit.map_err(|_| self.ended(connection))?;
            // A reply may come before `send` returns.
            if is_answered && events.peek().is_none() {
                number = connection.replies.expect();
            }
            permit.send(EncodedEvent(event.into()));
        }
        Ok(number)
    }

    /// Returns an open call.
    async fn open<'a>(&self, connection: &'a mut Option<Connection>) -> Result<&'a Connection, Status> {
        if connection.as_ref().is_none_or(|open| open.reader.is_finished()) {
            let channel = self.connect().await?;
            let (events, waiting) = mpsc::channel(MOST_WAITING);
            let replies = Arc::<Replies>::default();
            let reading = read_replies(channel, EventQueue(waiting), replies.clone(), self.gates.clone());
            *connection = Some(Connection { events, replies, reader: tokio::spawn(reading) });
        }
        connection.as_ref().ok_or_else(|| self.failed("there is no connection"))
    }

    async fn connect(&self) -> Result<Channel, Status> {
        let start = Instant::now();
        loop {
            match timeout_at(start + PEER_LIMIT, connect(&self.endpoint)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) if start.elapsed() >= REFUSAL_LIMIT => {
                    let cause = innermost(&error);
                    return Err(
                        self.failed(&format!("it cannot be reached: {cause}; start it before the step"))
                    );
                }
                Ok(Err(_)) => sleep(REFUSAL_PAUSE).await,
                Err(_) => return Err(self.failed("it has not accepted a connection for a minute")),
            }
        }
    }

    /// Waits until as many replies as `number` have come.
    async fn received(&self, connection: &Connection, number: u64) -> Result<(), Status> {
        loop {
            let changed = connection.replies.changed.notified();
            {
                let state = connection.replies.state.lock();
                if state.received >= number {
                    return Ok(());
                }
                if state.end.is_some() {
                    drop(state);
                    return Err(self.ended(connection));
                }
            }
            changed.await;
        }
    }

    fn ended(&self, connection: &Connection) -> Status {
        let cause = connection.replies.state.lock().end.clone().unwrap_or_default();
        self.failed(&format!("it has ended the stream of events: {cause}"))
    }

    fn failed(&self, cause: &str) -> Status {
        Status::new(Code::FailedPrecondition, format!("the debugger at {}: {cause}", self.url))
    }
}

impl Replies {
    /// Counts an event to which the debugger replies, and returns the number of its reply.
    fn expect(&self) -> u64 {
        let mut state = self.state.lock();
        state.expected = state.expected.max(state.received) + 1;
        state.expected
    }

    fn receive(&self, reply: EventReply, gates: &Gates) {
        for change in reply.debug_op_state_changes {
            let gate = match change.state() {
                State::ReadOnly => Gate::ReadOnly,
                State::ReadWrite => Gate::ReadWrite,
                State::Disabled => Gate::Closed,
                State::Unspecified => continue,
            };
            let DebugOpStateChange { node_name, output_slot, debug_op, .. } = change;
            let watch = format!("{node_name}:{output_slot}:{debug_op}");
            match gate {
                Gate::Closed => _ = gates.lock().remove(&watch),
                open => _ = gates.lock().insert(watch, open),
            }
        }
        self.state.lock().received += 1;
        self.changed.notify_waiters();
    }

    /// Ends the call, for a reason that is empty if there was no error.
    fn end(&self, reason: String) {
        self.state.lock().end.get_or_insert(reason);
        self.changed.notify_waiters();
    }
}

/// Makes the call and reads its replies until it ends. The gates of a debugger that fails are closed: a debugger that
/// starts again at its address knows nothing of them.
async fn read_replies(channel: Channel, events: EventQueue, replies: Arc<Replies>, gates: Arc<Gates>) {
    let call = async {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|error| tonic::Status::unavailable(innermost(&error)))?;
        let codec = MessageCodec::<EncodedEvent, EventReply>::default();
        // The debugger's answer begins with its first reply.
        let path = PathAndQuery::from_static(METHOD);
        let answer = client.streaming(tonic::Request::new(events), path, codec).await?;
        let mut answer = answer.into_inner();
        while let Some(reply) = answer.message().await? {
            replies.receive(reply, &gates);
        }
        Ok::<(), tonic::Status>(())
    };
    let reason = match call.await {
        Ok(()) => String::new(),
        Err(status) => {
            gates.lock().clear();
            format!("{}: {}", status.code(), status.message())
        }
    };
    replies.end(reason);
}

/// The events that wait to be written to the connection.
struct EventQueue(mpsc::Receiver<EncodedEvent>);

impl Stream for EventQueue {
    type Item = EncodedEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<EncodedEvent>> {
        self.0.poll_recv(cx)
    }
}

/// An encoded `Event` message.
struct EncodedEvent(Bytes);

impl WireMessage for EncodedEvent {
    fn write(&self, buffer: &mut EncodeBuf<'_>) -> Result<(), tonic::Status> {
        buffer.put(self.0.clone());
        Ok(())
    }

    fn read(buffer: &mut DecodeBuf<'_>) -> Result<EncodedEvent, tonic::Status> {
        Ok(EncodedEvent(buffer.copy_to_bytes(buffer.remaining())))
    }
}
