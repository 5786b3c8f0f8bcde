//! A client's connection: a task reads and begins calls; whoever has an answer writes it at once, as far as the socket
//! takes it.

use crate::call::{Answer, Call, Incoming};
use crate::errand::Errand;
use crate::frame::Reason;
use crate::hpack::Field;
use crate::server::Services;
use crate::state::{Heard, State};
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

/// Bytes of a read.
const READ: usize = 128 << 10;
/// A client that sends and does not read is not read either from here on, bytes.
const MOST_LAID_OUT: usize = 4 << 20;
/// A client that has said nothing for so long is asked whether it is there, and has so long to say so. Other gRPC
/// programs allow no more than one question in five minutes; a dead host is found sooner, by the system.
const ASKED_AFTER: Duration = Duration::from_secs(330);
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) state: Mutex<State>,
    write: OwnedWriteHalf,
    runtime: Handle,
}

/// Serves a client until it leaves, or until `stop` and the end of its calls.
pub(crate) async fn serve(socket: TcpStream, services: Arc<Services>, stop: CancellationToken) {
    let peer = socket.peer_addr();
    let (read, write) = socket.into_split();
    let connection =
        Arc::new(Connection { state: Mutex::new(State::new()), write, runtime: Handle::current() });
    let ends = Ends(connection.clone());
    connection.flush();
    if let Err(error) = connection.read(read, &services, &stop).await {
        tracing::debug!("the connection of {peer:?} ends: {error}");
    }
    drop(ends);
}

/// Ends the calls of a connection, however it ends.
struct Ends(Arc<Connection>);

impl Drop for Ends {
    fn drop(&mut self) {
        let (calls, woken) = {
            let mut state = self.0.state.lock();
            (state.end(), std::mem::take(&mut state.woken))
        };
        for call in calls {
            call.abort();
        }
        for waker in woken {
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
        let mut buffer = vec![0; READ];
        let mut held = 0;
        let mut is_asked = false;
        let mut stopped = std::pin::pin!(stop.cancelled());
        let mut is_leaving = false;
        let mut patience = std::pin::pin!(tokio::time::sleep(ASKED_AFTER));
        loop {
            while self.state.lock().out.len() > MOST_LAID_OUT {
                timeout(ANSWERS_WITHIN, self.write.writable()).await??;
                self.flush();
            }
            let read = tokio::select! {
                biased;
                read = read.read(&mut buffer[held..]) => read?,
                () = &mut stopped, if !is_leaving => {
                    is_leaving = true;
                    self.state.lock().leave(Reason::NO_ERROR, "");
                    self.flush();
                    if self.state.lock().is_over() {
                        return Ok(());
                    }
                    continue;
                }
                () = &mut patience => {
                    if is_asked {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    is_asked = true;
                    patience.as_mut().reset(tokio::time::Instant::now() + ANSWERS_WITHIN);
                    self.state.lock().ping();
                    self.flush();
                    continue;
                }
            };
            if read == 0 {
                return Ok(());
            }
            held += read;
            if is_asked || patience.is_elapsed() {
                is_asked = false;
                patience.as_mut().reset(tokio::time::Instant::now() + ASKED_AFTER);
            }
            let taken = self.hear(&buffer[..held], services)?;
            buffer.copy_within(taken..held, 0);
            held -= taken;
        }
    }

    /// Takes what a client said; begins the calls in it.
    fn hear(self: &Arc<Self>, bytes: &[u8], services: &Arc<Services>) -> io::Result<usize> {
        let mut heard = Heard::default();
        let (result, woken) = {
            let mut state = self.state.lock();
            let result = state.hear(bytes, &mut heard);
            if let Err(violation) = &result {
                state.leave(violation.reason, violation.what);
            }
            (result, std::mem::take(&mut state.woken))
        };
        for waker in woken {
            waker.wake();
        }
        for call in heard.given_up {
            call.abort();
        }
        if result.is_ok() {
            // Of calls that came together, other threads may take all but one.
            let last = heard.begun.pop();
            for (stream, fields) in heard.begun {
                self.begin(stream, fields, services, false);
            }
            if let Some((stream, fields)) = last {
                self.begin(stream, fields, services, true);
            }
        }
        // What they answered has left already.
        self.flush();
        result.map_err(|violation| io::Error::new(io::ErrorKind::InvalidData, violation.what))
    }

    /// Begins a call: on this thread, up to where it waits for something, or on another.
    fn begin(
        self: &Arc<Self>,
        stream: u32,
        fields: Vec<Field>,
        services: &Arc<Services>,
        is_begun_here: bool,
    ) {
        let whole = self.state.lock().whole_request(stream);
        let call = Call::new(fields, Incoming::new(self.clone(), stream, whole));
        if let Some(refusal) = call.refusal() {
            self.state.lock().begin_answer(stream, &refusal, true);
            return self.flush();
        }
        let (own, services) = (self.clone(), services.clone());
        let answered = async move {
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
        let work = match is_begun_here {
            true => Errand::begin(&self.runtime, answered),
            false => Errand::begin_elsewhere(&self.runtime, answered),
        };
        self.state.lock().set_work(stream, work);
    }

    /// Writes what is to be written, as far as the socket takes it; a task writes the rest.
    pub(crate) fn flush(self: &Arc<Self>) {
        let mut state = self.state.lock();
        if !state.is_stuck && !self.write_out(&mut state) {
            state.is_stuck = true;
            let own = self.clone();
            self.runtime.spawn(async move { own.flush_on().await });
        }
        let woken = std::mem::take(&mut state.woken);
        let is_over = state.is_over();
        drop(state);
        for waker in woken {
            waker.wake();
        }
        if is_over {
            self.shut_down();
        }
    }

    async fn flush_on(self: &Arc<Self>) {
        loop {
            let waited = self.write.writable().await;
            let mut state = self.state.lock();
            if waited.is_err() || self.write_out(&mut state) {
                state.is_stuck = false;
                drop(state);
                // For what has been laid out since, and those who wait for it.
                return if waited.is_ok() { self.flush() } else { self.shut_down() };
            }
            let woken = std::mem::take(&mut state.woken);
            drop(state);
            for waker in woken {
                waker.wake();
            }
        }
    }

    /// False if the socket takes no more now.
    fn write_out(&self, state: &mut State) -> bool {
        loop {
            state.lay_out();
            if state.out.is_empty() || state.is_broken {
                return true;
            }
            match self.write.try_write_vectored(&state.out.slices()) {
                Ok(written) => state.out.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Who reads ends the calls.
                    state.is_broken = true;
                    state.out.clear();
                    self.shut_down();
                    return true;
                }
            }
        }
    }

    /// Makes who reads see the end.
    fn shut_down(&self) {
        // One that is shut down already is none the worse.
        let _ = rustix::net::shutdown(self.write.as_ref(), Shutdown::Both);
    }
}
