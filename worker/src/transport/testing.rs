//! The other end of a link in tests: a socket from which the test reads frames.

use super::connection::Connection;
use super::frame::{Frame, HEADER, Header};
use super::socket::Socket;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

/// Returns one end of a socket pair as a connection, and the other end for the test.
pub(super) fn connection() -> io::Result<(Connection, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    // Reads do not block, because a frame must have been sent when the call that sends it returns.
    there.set_nonblocking(true)?;
    Ok((Connection::new(Socket::unix(here), Vec::new()), there))
}

/// Returns the next frame and its payload; `None` if none has arrived.
pub(super) fn next_frame(mut there: &UnixStream) -> io::Result<Option<(Frame, Vec<u8>)>> {
    let mut header = [0; HEADER];
    match there.read_exact(&mut header) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        read => read?,
    }
    let header = Header::decode(&header)?;
    let (mut head, mut payload) = (vec![0; header.fields_len], vec![0; header.payload as usize]);
    there.read_exact(&mut head)?;
    there.read_exact(&mut payload)?;
    Ok(Some((Frame::decode(header.kind, &head)?, payload)))
}
