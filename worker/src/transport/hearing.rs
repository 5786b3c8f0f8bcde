//! How an end of a link hears: what has come together is heard together, and what follows from it leaves together
//! ([`cork`](super::cork)).

use super::connection::Connection;
use super::content::Content;
use super::cork::corked;
use super::frame::Frame;
use super::reader::Reader;
use device::Pool;
use futures::FutureExt;
use rpc::afterwards::answering;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What has come is heard without a pause for so long.
const BATCH: Duration = Duration::from_micros(200);

/// Hears all that comes over a connection, until it ends.
///
/// # Errors
/// Those of the connection, and of `hear`: they end it.
pub(super) async fn hear_all(
    connection: &Arc<Connection>,
    mut hear: impl FnMut(Frame, Content) -> io::Result<()>,
) -> io::Result<()> {
    let mut reader = Reader::new(connection.clone())?;
    while let Some((frame, content)) = Content::next(&mut reader).await? {
        let batch = || corked(|| hear_batch(frame, content, &mut reader, &mut hear));
        answering(|| Pool::lend_thread(batch))?;
        if reader.holds_frame() {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Hears a frame, and those behind it that are here already, for a while.
fn hear_batch(
    frame: Frame,
    content: Content,
    reader: &mut Reader,
    hear: &mut impl FnMut(Frame, Content) -> io::Result<()>,
) -> io::Result<()> {
    let start = Instant::now();
    hear(frame, content)?;
    while reader.holds_frame() && start.elapsed() < BATCH {
        // It is all there, and nothing of it awaited: else it would be lost here.
        let next = Content::next(reader).now_or_never();
        let next = next.ok_or_else(|| io::Error::other("a frame that was there is awaited"))?;
        let Some((frame, content)) = next? else { break };
        hear(frame, content)?;
    }
    Ok(())
}
