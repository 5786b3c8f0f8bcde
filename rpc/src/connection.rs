//! A client's connection: one asynchronous task reads the socket and begins calls; the thread that completes
//! an answer writes it at once, as far as the socket accepts it.

use crate::call::{Answer, Call, Incoming};
use crate::frame::Reason;
use crate::hpack::Field;
use crate::inline_task::InlineTask;
use crate::server::Services;
use crate::state::{ConnectionState, ReadEvents};
use futures::FutureExt;
use parking_lot::Mutex;
use rustix::net::Shutdown;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Size of the read buffer, bytes.
const READ_BUFFER: usize = 128 << 10;
/// Number of bytes waiting to be written above which the connection reads no more requests, because the
/// client does not read its answers.
const MAX_UNWRITTEN: usize = 4 << 20;
/// Time without received bytes after which the client gets a PING. Other gRPC implementations tolerate at
/// most one PING in five minutes; the operating system detects a dead host sooner.
const PING_AFTER: Duration = Duration::from_secs(330);
/// Time within which a client must answer a PING, or read some of the bytes waiting to be written.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to one client: its socket, and the state of HTTP/2 on it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: Mutex<ConnectionState>,
    write: OwnedWriteHalf,
    runtime: Handle,
}

/// Serves a client until it disconnects, or after `stop` until its calls have ended.
pub(crate) async fn serve(socket: TcpStream, services: Arc<Services>, stop: CancellationToken) {
    let peer = socket.peer_addr();
    let (read, write) = socket.into_split();
    let connection =
        Arc::new(Connection { state: Mutex::new(ConnectionState::new()), write, runtime: Handle::current() });
    let abort_calls = AbortCallsOnDrop(connection.clone());
    connection.flush();
    if let Err(error) = connection.read(read, &services, &stop).await {
        tracing::debug!("the connection of {peer:?} ends: {error}");
    }
    drop(abort_calls);
}

/// A guard whose drop aborts the calls of a connection, when the task that reads the connection ends or panics.
struct AbortCallsOnDrop(Arc<Connection>);

impl Drop for AbortCallsOnDrop {
    fn drop(&mut self) {
        let (calls, wakers) = {
            let mut state = self.0.state.lock();
            (state.remove_all(), std::mem::take(&mut state.wakers))
        };
        for call in calls {
            call.abort();
        }
        for waker in wakers {
            waker.wake();
        }
    }
}

impl Connection {
    async fn read(
        self: &Arc<Self>,
        mut read: OwnedReadHalf,
        services: &Arc<Services>,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let mut buffer = vec![0; READ_BUFFER];
        let mut filled = 0;
        let mut is_ping_pending = false;
        let mut stopped = std::pin::pin!(stop.cancelled());
        let mut is_leaving = false;
        let mut idle_timer = std::pin::pin!(tokio::time::sleep(PING_AFTER));
        loop {
            while self.state.lock().out.len() > MAX_UNWRITTEN {
                timeout(RESPONSE_TIMEOUT, self.write.writable()).await??;
                self.flush();
            }
            let read = tokio::select! {
                biased;
                read = read.read(&mut buffer[filled..]) => read?,
                () = &mut stopped, if !is_leaving => {
                    is_leaving = true;
                    self.state.lock().send_goaway(Reason::NO_ERROR, "");
                    self.flush();
                    if self.state.lock().is_over() {
                        return Ok(());
                    }
                    continue;
                }
                () = &mut idle_timer => {
                    if is_ping_pending {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    is_ping_pending = true;
                    idle_timer.as_mut().reset(tokio::time::Instant::now() + RESPONSE_TIMEOUT);
                    self.state.lock().ping();
                    self.flush();
                    continue;
                }
            };
            if read == 0 {
                return Ok(());
            }
            filled += read;
            if is_ping_pending || idle_timer.is_elapsed() {
                is_ping_pending = false;
                idle_timer.as_mut().reset(tokio::time::Instant::now() + PING_AFTER);
            }
            let consumed = self.process(&buffer[..filled], services)?;
            buffer.copy_within(consumed..filled, 0);
            filled -= consumed;
        }
    }

    /// Processes received bytes and begins the calls in them. Returns the number of bytes consumed.
    fn process(self: &Arc<Self>, bytes: &[u8], services: &Arc<Services>) -> io::Result<usize> {
        let mut events = ReadEvents::default();
        let (result, wakers) = {
            let mut state = self.state.lock();
            let result = state.read(bytes, &mut events);
            if let Err(violation) = &result {
                state.send_goaway(violation.reason, violation.message);
            }
            (result, std::mem::take(&mut state.wakers))
        };
        for waker in wakers {
            waker.wake();
        }
        for call in events.given_up {
            call.abort();
        }
        if result.is_ok() {
            // If the bytes contain several calls, all except the last begin on other threads of the runtime,
            // so that they run in parallel.
            let last = events.begun.pop();
            for (stream, fields) in events.begun {
                self.begin(stream, fields, services, false);
            }
            if let Some((stream, fields)) = last {
                self.begin(stream, fields, services, true);
            }
        }
        // Writes the frames that no call has flushed, such as acknowledgements of settings.
        self.flush();
        result.map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation.message))
    }

    /// Begins a call: on this thread up to its first wait if `begins_here`, or on another thread of the
    /// runtime.
    fn begin(self: &Arc<Self>, stream: u32, fields: Vec<Field>, services: &Arc<Services>, begins_here: bool) {
        let whole = self.state.lock().take_whole_request(stream);
        let call = Call::new(fields, Incoming::new(self.clone(), stream, whole));
        if let Some(refusal) = call.refusal() {
            self.state.lock().begin_answer(stream, &refusal, true);
            return self.flush();
        }
        let (own, services) = (self.clone(), services.clone());
        let work = async move {
            let path = call.value(":path").cloned().unwrap_or_default();
            let answered = AssertUnwindSafe(async { services.call(call).await }).catch_unwind();
            let answer = answered.await.unwrap_or_else(|_| {
                let path = String::from_utf8_lossy(&path);
                Answer::Failure(tonic::Status::internal(format!(
                    "the server panicked while it answered {path}"
                )))
            });
            answer.send(&own, stream).await;
        };
        let work = match begins_here {
            true => InlineTask::begin(&self.runtime, work),
            false => InlineTask::begin_elsewhere(&self.runtime, work),
        };
        self.state.lock().set_work(stream, work);
    }

    /// Writes pending frames as far as the socket accepts them; a spawned task writes the remaining ones.
    pub(crate) fn flush(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !state.is_write_blocked && !self.write_out(&mut state) {
            state.is_write_blocked = true;
            let own = self.clone();
            self.runtime.spawn(async move { own.flush_when_writable().await });
        }
        let wakers = std::mem::take(&mut state.wakers);
        let is_over = state.is_over();
        drop(state);
        for waker in wakers {
            waker.wake();
        }
        if is_over {
            self.shut_down();
        }
    }

    /// Writes the pending frames whenever the socket is writable, until all are written.
    async fn flush_when_writable(self: &Arc<Self>) {
        loop {
            let waited = self.write.writable().await;
            let mut state = self.state.lock();
            if waited.is_err() || self.write_out(&mut state) {
                state.is_write_blocked = false;
                drop(state);
                // The flush also writes the frames and wakes the wakers that other threads added while
                // `is_write_blocked` was set.
                return if waited.is_ok() { self.flush() } else { self.shut_down() };
            }
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            for waker in wakers {
                waker.wake();
            }
        }
    }

    /// Writes pending frames without blocking. Returns false if the socket accepts no more bytes at present.
    fn write_out(&self, state: &mut ConnectionState) -> bool {
        loop {
            state.fill_outbox();
            if state.out.is_empty() || state.is_broken {
                return true;
            }
            match self.write.try_write_vectored(&state.out.slices()) {
                Ok(written) => state.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The task that reads the socket aborts the calls when its read fails.
                    state.is_broken = true;
                    state.out.clear();
                    self.shut_down();
                    return true;
                }
            }
        }
    }

    /// Shuts the socket down, so that the task that reads it sees the end of the connection.
    fn shut_down(&self) {
        // An error means that the socket is shut down already.
        let _ = rustix::net::shutdown(self.write.as_ref(), Shutdown::Both);
    }
}
