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
use std::sync::{Arc, Weak};
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

/// The time for which a debugger may refuse connections, because it may just be starting.
const REFUSAL_LIMIT: Duration = Duration::from_secs(2);
const REFUSAL_PAUSE: Duration = Duration::from_millis(50);

/// The time within which a debugger must connect, take an event, or reply to the metadata of a run.
const PEER_LIMIT: Duration = Duration::from_secs(60);

/// The time for which the close of a stream waits for the debugger's last replies.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// The streams of one process, one a URL.
#[derive(Debug, Default)]
pub struct EventStreams {
    streams: Mutex<FxHashMap<String, Weak<EventStream>>>,
}

impl EventStreams {
    /// Returns the stream to a URL. It connects at its first event.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that is not `grpc://host:port` with an optional path.
    pub fn stream(&self, url: &str) -> Result<Arc<EventStream>, Status> {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(url).and_then(Weak::upgrade) {
            return Ok(stream);
        }
        let address = url.strip_prefix(SCHEME).map(|rest| rest.split('/').next().unwrap_or_default());
        let Some(endpoint) = address.and_then(endpoint) else {
            return Err(Status::invalid(format!(
                "Invalid debug target URL: {url}; it must be {SCHEME}host:port"
            )));
        };
        let stream = Arc::new(EventStream {
            url: url.to_owned(),
            endpoint,
            connection: tokio::sync::Mutex::default(),
            replies: Arc::default(),
        });
        streams.retain(|_, stream| stream.strong_count() > 0);
        streams.insert(url.to_owned(), Arc::downgrade(&stream));
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

/// The stream of events to one URL. Events are sent in the order of the calls.
#[derive(Debug)]
pub struct EventStream {
    url: String,
    endpoint: Endpoint,
    connection: tokio::sync::Mutex<Option<Connection>>,
    replies: Arc<Replies>,
}

/// An open call.
#[derive(Debug)]
struct Connection {
    events: mpsc::Sender<EncodedEvent>,
    /// The task that reads the replies; it ends when the call does.
    reader: JoinHandle<()>,
}

/// The replies of a debugger, over all connections to it.
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
    /// The gates by the names of their watches, `node:slot:op`.
    gates: FxHashMap<String, Gate>,
    /// The reason for which the last call ended, if an error ended it.
    failure: Option<String>,
}

/// The reply for which a sender waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The debugger sends no reply.
    None,
    /// The debugger sends a reply, for which the sender does not wait.
    Later,
    /// The sender waits for the reply, for at most a minute.
    Prompt,
    /// The sender waits for the reply for as long as the debugger is connected.
    Breakpoint,
}

impl EventStream {
    /// Returns the state of a watch, named `node:slot:op`.
    pub fn gate(&self, watch: &str) -> Gate {
        self.replies.state.lock().gates.get(watch).copied().unwrap_or_default()
    }

    /// Sends encoded `Event` messages, and waits for the reply to the last. Connects if the stream has no connection.
    ///
    /// # Errors
    /// `FailedPrecondition` that names the URL, if the debugger cannot be reached, ends the stream, or takes longer than a
    /// minute to accept an event or to send a prompt reply.
    pub async fn send(&self, events: Vec<Vec<u8>>, reply: Reply) -> Result<(), Status> {
        let number = {
            let mut connection = self.connection.lock().await;
            let sender = self.open(&mut connection).await?;
            for event in events {
                let sent = timeout(PEER_LIMIT, sender.send(EncodedEvent(event.into()))).await;
                let accepted = sent.map_err(|_| self.failed("it has accepted no event for a minute"))?;
                accepted.map_err(|_| self.ended())?;
            }
            (reply != Reply::None).then(|| self.replies.expect())
        };
        let Some(number) = number else { return Ok(()) };
        match reply {
            Reply::None | Reply::Later => Ok(()),
            Reply::Breakpoint => self.received(number).await,
            Reply::Prompt => timeout(PEER_LIMIT, self.received(number))
                .await
                .map_err(|_| self.failed("it has not replied to the metadata of a run for a minute"))?,
        }
    }

    /// Ends the stream, and waits for the debugger's last replies. The next event opens it again.
    ///
    /// # Errors
    /// `FailedPrecondition` if the debugger has not ended the call after ten seconds; it is cut off then.
    pub async fn close(&self) -> Result<(), Status> {
        let Some(Connection { events, mut reader }) = self.connection.lock().await.take() else {
            return Ok(());
        };
        drop(events);
        if timeout(CLOSE_LIMIT, &mut reader).await.is_err() {
            reader.abort();
            return Err(self.failed("it keeps a stream open that has ended"));
        }
        Ok(())
    }

    /// Returns the sender of an open call.
    async fn open<'a>(
        &self,
        connection: &'a mut Option<Connection>,
    ) -> Result<&'a mpsc::Sender<EncodedEvent>, Status> {
        if connection.as_ref().is_none_or(|open| open.reader.is_finished()) {
            let channel = self.connect().await?;
            let (events, waiting) = mpsc::channel(MOST_WAITING);
            self.replies.begin();
            let reader = tokio::spawn(read_replies(channel, EventQueue(waiting), self.replies.clone()));
            *connection = Some(Connection { events, reader });
        }
        connection.as_ref().map(|open| &open.events).ok_or_else(|| self.ended())
    }

    async fn connect(&self) -> Result<Channel, Status> {
        let start = Instant::now();
        loop {
            match timeout_at(start + PEER_LIMIT, connect(&self.endpoint)).await {
                Ok(Ok(channel)) => return Ok(channel),
                Ok(Err(error)) if start.elapsed() >= REFUSAL_LIMIT => {
                    return Err(self.failed(&format!("it cannot be reached: {}", innermost(&error))));
                }
                Ok(Err(_)) => sleep(REFUSAL_PAUSE).await,
                Err(_) => return Err(self.failed("it has not accepted a connection for a minute")),
            }
        }
    }

    /// Waits until as many replies as `number` have come.
    async fn received(&self, number: u64) -> Result<(), Status> {
        loop {
            let changed = self.replies.changed.notified();
            {
                let state = self.replies.state.lock();
                if state.received >= number {
                    return Ok(());
                }
                if state.failure.is_some() {
                    drop(state);
                    return Err(self.ended());
                }
            }
            changed.await;
        }
    }

    fn ended(&self) -> Status {
        let cause = self.replies.state.lock().failure.clone();
        self.failed(&format!(
            "it has ended the stream of events: {}",
            cause.as_deref().unwrap_or("without an error")
        ))
    }

    fn failed(&self, cause: &str) -> Status {
        let text = format!("the debugger at {}: {cause}; start it before the step", self.url);
        Status::new(Code::FailedPrecondition, text)
    }
}

impl Replies {
    /// Forgets the end of an earlier call, and its replies that have not come.
    fn begin(&self) {
        let mut state = self.state.lock();
        state.failure = None;
        state.expected = state.received;
    }

    /// Counts an event to which the debugger replies, and returns the number of its reply.
    fn expect(&self) -> u64 {
        let mut state = self.state.lock();
        state.expected = state.expected.max(state.received) + 1;
        state.expected
    }

    fn receive(&self, reply: EventReply) {
        let mut state = self.state.lock();
        state.received += 1;
        for change in reply.debug_op_state_changes {
            let gate = match change.state() {
                State::ReadOnly => Gate::ReadOnly,
                State::ReadWrite => Gate::ReadWrite,
                State::Disabled | State::Unspecified => Gate::Closed,
            };
            let DebugOpStateChange { node_name, output_slot, debug_op, .. } = change;
            let watch = format!("{node_name}:{output_slot}:{debug_op}");
            match gate {
                Gate::Closed => _ = state.gates.remove(&watch),
                open => _ = state.gates.insert(watch, open),
            }
        }
        drop(state);
        self.changed.notify_waiters();
    }

    fn end(&self, failure: String) {
        self.state.lock().failure = Some(failure);
        self.changed.notify_waiters();
    }
}

/// Makes the call and reads its replies until it ends.
async fn read_replies(channel: Channel, events: EventQueue, replies: Arc<Replies>) {
    let call = async {
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.map_err(|error| tonic::Status::unavailable(innermost(&error)))?;
        let codec = MessageCodec::<EncodedEvent, EventReply>::default();
        // The debugger's answer begins with its first reply.
        let path = PathAndQuery::from_static(METHOD);
        let answer = client.streaming(tonic::Request::new(events), path, codec).await?;
        let mut answer = answer.into_inner();
        while let Some(reply) = answer.message().await? {
            replies.receive(reply);
        }
        Ok::<(), tonic::Status>(())
    };
    let failure = match call.await {
        Ok(()) => "it needs no more".to_owned(),
        Err(status) => status.message().to_owned(),
    };
    replies.end(failure);
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
