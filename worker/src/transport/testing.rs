//! The other end of a link in tests: a socket that frames are read from by hand.

use super::connection::Connection;
use super::frame::{Frame, HEADER, Header};
use super::socket::Socket;
use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;

/// A connection, and its other end.
pub(super) fn connection() -> io::Result<(Connection, UnixStream)> {
    let (here, there) = UnixStream::pair()?;
    // What is told has left when the call that tells it returns.
    there.set_nonblocking(true)?;
    Ok((Connection::new(Socket::unix(here), Vec::new()), there))
}

/// The next frame and its payload, if there is one.
pub(super) fn heard(mut there: &UnixStream) -> io::Result<Option<(Frame, Vec<u8>)>> {
    let mut header = [0; HEADER];
    match there.read_exact(&mut header) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
        read => read?,
    }
    let header = Header::decode(&header)?;
    let (mut head, mut payload) = (vec![0; header.head], vec![0; header.payload as usize]);
    there.read_exact(&mut head)?;
    there.read_exact(&mut payload)?;
    Ok(Some((Frame::decode(header.kind, &head)?, payload)))
}
