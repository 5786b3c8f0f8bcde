//! The receive loop of one end of a link. A thread handles all frames that have arrived before it pauses, and
//! sends the responses to them in one write ([`visit::serve`]).

use super::connection::Connection;
use super::content::Content;
use super::frame::Frame;
use super::reader::Reader;
use device::Pool;
use futures::FutureExt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longest time for which the loop handles frames without yielding to the runtime.
const BATCH: Duration = Duration::from_micros(200);

/// Receives frames and passes them to `handle` until the connection ends.
///
/// # Errors
/// Those of the connection and of `handle`; either ends the connection.
pub(super) async fn receive_all(
    connection: &Arc<Connection>,
    mut handle: impl FnMut(Frame, Content) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = Reader::new(connection.clone())?;
    while let Some((frame, content)) = Content::next(&mut reader).await? {
        visit::serve(!Pool::is_compute_thread(), || handle_batch(frame, content, &mut reader, &mut handle))?;
        if reader.has_frame() {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Handles a frame and the frames behind it that have already arrived, for at most [`BATCH`].
fn handle_batch(
    frame: Frame,
    content: Content,
    reader: &mut Reader,
    handle: &mut impl FnMut(Frame, Content) -> io::Result<()>,
) -> io::Result<()> {
    let start = Instant::now();
    handle(frame, content)?;
    while reader.has_frame() && start.elapsed() < BATCH {
        // The whole frame has been read, so this future completes at once; if it did not, dropping it would
        // lose data.
        let next = Content::next(reader).now_or_never();
        let next = next.ok_or_else(|| io::Error::other("a frame that was there is awaited"))?;
        let Some((frame, content)) = next? else { break };
        handle(frame, content)?;
    }
    Ok(())
}
