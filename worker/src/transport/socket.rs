//! One connection's bytes and descriptors.

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
use std::time::Duration;

/// A dead host is found by probes, as on connections of gRPC.
const PROBE_AFTER: Duration = Duration::from_secs(10);
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// Bytes that have been sent and not acknowledged for so long are those of a dead host, ms.
const UNACKNOWLEDGED: u32 = 25_000;
/// Of a Unix socket: a write of the default size wakes the reader too often, bytes.
const UNIX_BUFFER: usize = 1 << 20;

#[derive(Debug)]
pub(super) enum Socket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Socket {
    pub(super) fn unix(stream: UnixStream) -> Socket {
        // A system that allows no more keeps what it has.
        let _ = sockopt::set_socket_send_buffer_size(&stream, UNIX_BUFFER);
        Socket::Unix(stream)
    }

    pub(super) fn tcp(stream: TcpStream) -> io::Result<Socket> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED)?;
        Ok(Socket::Tcp(stream))
    }

    pub(super) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Socket::Unix(stream) => stream.set_read_timeout(timeout),
            Socket::Tcp(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// Writes some of the bytes, the descriptor with the first of them.
    ///
    /// # Errors
    /// `WouldBlock` if it would have to wait and must not.
    pub(super) fn send(
        &self,
        slices: &[IoSlice<'_>],
        descriptor: Option<BorrowedFd<'_>>,
        waits: bool,
    ) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | if waits { SendFlags::empty() } else { SendFlags::DONTWAIT };
        let descriptors = descriptor.as_slice();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        loop {
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                control.push(SendAncillaryMessage::ScmRights(descriptors));
            }
            match sendmsg(self, slices, &mut control, flags) {
                Err(Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                result => return Ok(result?),
            }
        }
    }

    /// Reads some bytes; 0 at the end. Descriptors that come along go behind those in `descriptors`.
    pub(super) fn receive(&self, into: &mut [u8], descriptors: &mut VecDeque<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        loop {
            let mut control = RecvAncillaryBuffer::new(&mut space);
            match recvmsg(self, &mut [IoSliceMut::new(into)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(received) => {
                    for message in control.drain() {
                        if let RecvAncillaryMessage::ScmRights(given) = message {
                            descriptors.extend(given);
                        }
                    }
                    return Ok(received.bytes);
                }
            }
        }
    }

    /// Ends the connection in both directions, for whoever reads or writes it too.
    pub(super) fn shut_down(&self) {
        let _ = match self {
            Socket::Unix(stream) => stream.shutdown(Shutdown::Both),
            Socket::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
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
