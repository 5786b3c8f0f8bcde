//! A connection's socket: sends and receives bytes and file descriptors.

use proto::channel;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg, sockopt,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Instant;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Send buffer of a Unix socket, bytes: with the default size, one large write fills the buffer and wakes the
/// reader many times.
const UNIX_BUFFER: usize = 1 << 20;

/// The blocking side of a connection's socket: a Unix socket on one machine, or TCP.
#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    /// Wraps a Unix socket, and enlarges its send buffer.
    pub(super) fn unix(stream: UnixStream) -> Socket {
        // An error is ignored, because the default size works too.
        let _ = sockopt::set_socket_send_buffer_size(&stream, UNIX_BUFFER);
        Socket::Unix(stream)
    }

    /// Wraps a TCP socket, and sets its options.
    pub(super) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        // A dead host is detected after the same time as on gRPC connections.
        sockopt::set_tcp_keepidle(&stream, channel::TCP_PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(&stream, channel::TCP_PROBE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, channel::TCP_PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, channel::TCP_UNACKNOWLEDGED)?;
        Ok(Socket::Tcp(stream))
    }

    /// Returns the reading side of this connection for asynchronous code.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    #[expect(deprecated, reason = "what the unsafe one asks for holds of an owned descriptor: it stays open")]
    pub(super) fn source(&self) -> io::Result<Source> {
        let descriptor = self.as_fd().try_clone_to_owned()?;
        Ok(Source(AsyncFd::with_interest(descriptor, Interest::READABLE)?))
    }

    /// Writes at least one byte of `slices`, and the descriptor with it. Returns the number of bytes written.
    ///
    /// # Errors
    /// `WouldBlock` if the socket accepts nothing and `waits` is false.
    pub(super) fn send(
        &self,
        slices: &[IoSlice<'_>],
        descriptor: Option<BorrowedFd<'_>>,
        waits: bool,
    ) -> io::Result<usize> {
        let descriptors = descriptor.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            match sendmsg(self, slices, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if waits => self.wait(PollFlags::OUT, None)?,
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                result => return Ok(result?),
            }
        }
    }

    /// Waits for bytes and reads them into `into`. Returns their number; 0 at the end of the connection.
    /// Descriptors that arrive are appended to `descriptors`.
    ///
    /// # Errors
    /// `TimedOut` if no bytes arrive until `by`.
    pub(super) fn receive(
        &self,
        into: &mut [u8],
        descriptors: &mut VecDeque<OwnedFd>,
        by: Option<Instant>,
    ) -> io::Result<usize> {
        loop {
            match receive(self.as_fd(), into, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait(PollFlags::IN, by)?,
                result => return result,
            }
        }
    }

    fn wait(&self, until: PollFlags, by: Option<Instant>) -> io::Result<()> {
        let left = by.map(|by| by.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut [PollFd::new(self, until)], left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Shuts the connection down in both directions, which also wakes other threads that read or write it.
    pub(super) fn shut_down(&self) {
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// The reading side of a connection for asynchronous code. The runtime watches the socket only for
/// readability: each read by the other end makes a Unix socket writable, and watching for that would wake the
/// runtime for nothing.
#[derive(Debug)]
pub(super) struct Source(AsyncFd<OwnedFd>);

impl Source {
    /// Reads like [`Socket::receive`], without blocking a thread.
    pub(super) async fn receive(
        &self,
        into: &mut [u8],
        descriptors: &mut VecDeque<OwnedFd>,
    ) -> io::Result<usize> {
        loop {
            let mut ready = self.0.readable().await?;
            let before = descriptors.len();
            match receive(self.0.as_fd(), into, descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Err(error),
                Ok(read) => {
                    // A read of fewer bytes than `into` can hold has emptied the socket, so another read would
                    // fail. A read that returns file descriptors (`SCM_RIGHTS`) is different: it ends after the
                    // bytes that were sent with them, even if more bytes have arrived.
                    if read < into.len() && descriptors.len() == before {
                        ready.clear_ready();
                    }
                    return Ok(read);
                }
            }
        }
    }
}

/// Reads the bytes and descriptors that have arrived, without waiting. Returns the number of bytes.
fn receive(from: BorrowedFd<'_>, into: &mut [u8], descriptors: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        match recvmsg(from, &mut [IoSliceMut::new(into)], &mut control, flags) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(received) => {
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received_fds) = message {
                        descriptors.extend(received_fds);
                    }
                }
                return Ok(received.bytes);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Socket::Unix(stream) => stream.as_fd(),
            Socket::Tcp(stream) => stream.as_fd(),
        }
    }
}
