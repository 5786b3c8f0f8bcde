//! The primary's record of its standby, and the stream of messages to the standby.

use super::{LEASE, split};
use device::journal::Change;
use futures::stream::{self, Stream};
use graph::Code;
use proto::Status;
use proto::replication::{Batch, FollowRequest};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};

/// Approximate maximum size of a message to a standby, bytes; changes are split into messages of this size.
const MESSAGE_BYTES: usize = 4 << 20;
/// Largest number of snapshot messages that are queued for a standby.
const MAX_QUEUED_MESSAGES: usize = 8;
/// Largest number of batches that are sent and not yet applied; changes made meanwhile go into the next batch.
const MAX_BATCHES_IN_FLIGHT: usize = 2;

/// The primary's record of its standby. If the link is lost, the record remains while the standby's process may still
/// run.
pub(super) struct StandbyState {
    /// The number of the standby's link, which the primary counts up for each link.
    pub(super) id: u64,
    pub(super) presence: String,
    pub(super) token: u64,
    /// The number of the attempt to follow the primary that opened the link; the standby numbers its attempts.
    attempt: u64,
    /// Set while the standby has the complete state and would take over if this process died. Runs then wait
    /// for its acknowledgements.
    pub(super) may_take_over: bool,
    /// The link to the standby; `None` once it is lost.
    link: Option<StandbyLink>,
    /// The number of the batch that is the snapshot; `None` until sending of the snapshot begins.
    snapshot: Option<u64>,
    applied: u64,
    /// The time at which the last heartbeat was sent that the standby has acknowledged.
    last_acknowledged: Instant,
    /// The batches sent since the snapshot that the standby has not applied, by number; a new link sends them
    /// again.
    unapplied: VecDeque<(u64, Vec<Batch>)>,
}

impl StandbyState {
    /// Returns the record of a new standby, and tells the standby to discard any state that it holds.
    pub(super) fn new(id: u64, hello: FollowRequest, link: StandbyLink) -> StandbyState {
        let FollowRequest { presence, token, holds_state, attempt, .. } = hello;
        link.send(Batch { is_everything: true, has_more: true, ..Batch::default() });
        StandbyState {
            id,
            presence,
            token,
            attempt,
            may_take_over: holds_state,
            link: Some(link),
            snapshot: None,
            applied: 0,
            last_acknowledged: Instant::now(),
            unapplied: VecDeque::new(),
        }
    }

    /// Checks that the process that sent `hello` is this standby's process or may replace this standby.
    ///
    /// # Errors
    /// `Unavailable` for another process while this standby is linked or may have taken over, `Aborted` for a
    /// request of the same process that is older than its current link.
    pub(super) fn check_replacement(&self, hello: &FollowRequest) -> Result<(), Status> {
        if hello.token == self.token {
            let is_old = hello.attempt < self.attempt;
            return if is_old { Err(Status::new(Code::Aborted, "there is a later link")) } else { Ok(()) };
        }
        let presence = &self.presence;
        let why = match (self.is_linked(), self.may_take_over) {
            (true, _) => format!("there is a standby, whose process holds {presence} open"),
            (false, true) => format!(
                "there was a standby, whose process held {presence} open: its process is not known to have ended, and may have \
                 taken over"
            ),
            (false, false) => return Ok(()),
        };
        Err(Status::new(Code::Unavailable, why))
    }

    /// Returns whether `hello` comes from this standby's process and the process can continue from the state
    /// that it holds.
    pub(super) fn can_resume(&self, hello: &FollowRequest) -> bool {
        hello.holds_state && self.may_take_over && self.snapshot.is_some() && hello.token == self.token
    }

    /// Replaces the standby's link, and sends the batches that the standby has not applied over the new link.
    pub(super) fn resume(&mut self, id: u64, hello: &FollowRequest, link: StandbyLink) {
        (self.id, self.attempt) = (id, hello.attempt);
        self.set_applied(hello.applied);
        self.unapplied.iter().flat_map(|(_, batch)| batch).for_each(|message| _ = link.send(message.clone()));
        self.link = Some(link);
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Drops the link, and wakes a thread that waits for room in the link's queue of snapshot messages.
    pub(super) fn unlink(&mut self) {
        if let Some(link) = self.link.take() {
            link.room.close();
        }
    }

    /// Returns whether changes are to be sent to the standby: it is linked, and its snapshot has begun.
    pub(super) fn is_following(&self) -> bool {
        self.is_linked() && self.snapshot.is_some()
    }

    /// Records the acknowledgement of a heartbeat sent at `sent`. Returns whether the standby had been silent before
    /// this acknowledgement.
    pub(super) fn record_acknowledgement(&mut self, sent: Instant) -> bool {
        let was_silent = self.is_silent();
        self.last_acknowledged = self.last_acknowledged.max(sent);
        was_silent
    }

    /// Returns whether the standby has been silent for so long that it may have taken over.
    pub(super) fn is_silent(&self) -> bool {
        self.last_acknowledged.elapsed() > LEASE
    }

    /// Sends a heartbeat with `time`, milliseconds since the primary started. Returns false if there is no link.
    pub(super) fn send_heartbeat(&self, time: u64) -> bool {
        self.link.as_ref().is_some_and(|link| link.time.send(time).is_ok())
    }

    /// Returns the size of the changes that are sent and not yet applied, bytes.
    pub(super) fn unapplied_bytes(&self) -> usize {
        let messages = self.unapplied.iter().flat_map(|(_, batch)| batch);
        messages.flat_map(|message| &message.changes).map(split::size).sum()
    }

    /// Returns whether [`MAX_BATCHES_IN_FLIGHT`] batches are in flight.
    pub(super) fn is_backlogged(&self) -> bool {
        self.unapplied.len() >= MAX_BATCHES_IN_FLIGHT
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    /// Records that the standby has applied all batches up to `number`.
    pub(super) fn set_applied(&mut self, number: u64) {
        self.applied = number;
        self.unapplied.retain(|(sent, _)| *sent > number);
    }

    pub(super) fn snapshot(&self) -> Option<u64> {
        self.snapshot
    }

    /// Begins a snapshot, which is batch `number`. Returns the link to send it over and `number`; `None` if
    /// the link is lost.
    pub(super) fn begin_snapshot(&mut self, number: u64) -> Option<(StandbyLink, u64)> {
        (self.may_take_over, self.snapshot) = (false, Some(number));
        self.unapplied.clear();
        Some((self.link.clone()?, number))
    }

    /// Sends a batch and retains it until it is applied; without a link it is only retained.
    pub(super) fn send(&mut self, number: u64, batch: Vec<Batch>) {
        if let Some(link) = &self.link {
            batch.iter().for_each(|message| _ = link.send(message.clone()));
        }
        self.unapplied.push_back((number, batch));
    }
}

/// The sending end of the stream of messages to a standby.
#[derive(Clone)]
pub(super) struct StandbyLink {
    messages: mpsc::UnboundedSender<Batch>,
    /// The time of the newest heartbeat, milliseconds since the primary started. It is sent before all queued
    /// messages.
    time: watch::Sender<u64>,
    /// A semaphore with one permit for each snapshot message that may still be queued.
    room: Arc<Semaphore>,
}

impl StandbyLink {
    /// Creates a link, and the response stream that carries its messages.
    pub(super) fn new() -> (StandbyLink, impl Stream<Item = Result<Batch, tonic::Status>> + Send + 'static) {
        let (messages, to_send) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(MAX_QUEUED_MESSAGES));
        let (time, times) = watch::channel(0);
        let reader = StandbyLinkReader { messages: to_send, times, room: room.clone() };
        let next = |mut reader: StandbyLinkReader| async {
            reader.next().await.map(|message| (Ok(message), reader))
        };
        (StandbyLink { messages, time, room }, stream::unfold(reader, next))
    }

    /// Queues a message. Returns false if the stream has ended.
    fn send(&self, message: Batch) -> bool {
        self.messages.send(message).is_ok()
    }

    /// Waits until fewer than [`MAX_QUEUED_MESSAGES`] snapshot messages are queued, and queues one. Returns
    /// false if the stream has ended. Blocks the thread, so asynchronous code must not call it.
    pub(super) fn send_blocking(&self, message: Batch) -> bool {
        let Ok(permit) = Handle::current().block_on(self.room.acquire()) else { return false };
        permit.forget();
        self.send(message)
    }
}

/// The receiving end of a [`StandbyLink`]. Dropping it wakes a thread that waits for room in the queue.
struct StandbyLinkReader {
    messages: mpsc::UnboundedReceiver<Batch>,
    times: watch::Receiver<u64>,
    room: Arc<Semaphore>,
}

impl StandbyLinkReader {
    async fn next(&mut self) -> Option<Batch> {
        tokio::select! {
            biased;
            Ok(()) = self.times.changed() => {
                let time = *self.times.borrow_and_update();
                Some(Batch { time, ..Batch::default() })
            }
            message = self.messages.recv() => {
                if message.as_ref().is_some_and(|message| message.is_everything) {
                    self.room.add_permits(1);
                }
                message
            }
        }
    }
}

impl Drop for StandbyLinkReader {
    fn drop(&mut self) {
        self.room.close();
    }
}

/// Splits changes into messages of limited size, which are copies of `empty` with changes; all except the last have
/// `has_more` set.
pub(super) fn messages(empty: Batch, changes: Vec<Change>) -> impl Iterator<Item = Batch> {
    let mut pieces = changes.into_iter().flat_map(|change| split::split(change, MESSAGE_BYTES)).peekable();
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let (mut batch, mut size) = (empty.clone(), 0);
        while let Some(piece) =
            pieces.next_if(|piece| size == 0 || size + split::size(piece) <= MESSAGE_BYTES)
        {
            size += split::size(&piece).max(1);
            batch.changes.push(piece);
        }
        is_over = pieces.peek().is_none();
        batch.has_more = !is_over;
        Some(batch)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(token: u64, attempt: u64) -> FollowRequest {
        FollowRequest { token, attempt, presence: "host:1".into(), ..FollowRequest::default() }
    }

    fn code_of(result: Result<(), Status>) -> Result<(), Code> {
        result.map_err(|status| status.code)
    }

    #[test]
    fn a_standby_is_replaced_only_after_its_process_has_ended() {
        let (link, _messages) = StandbyLink::new();
        let mut standby = StandbyState::new(1, hello(7, 3), link);
        let other = |standby: &StandbyState| code_of(standby.check_replacement(&hello(8, 9)));
        assert_eq!(other(&standby), Err(Code::Unavailable), "it receives a snapshot");
        standby.unlink();
        assert_eq!(other(&standby), Ok(()), "it has nothing, and is lost");
        standby.may_take_over = true;
        assert_eq!(other(&standby), Err(Code::Unavailable), "it may serve by now");
        // The standby's process may open a new link, but a request older than its current link is refused.
        assert_eq!(code_of(standby.check_replacement(&hello(7, 4))), Ok(()));
        assert_eq!(code_of(standby.check_replacement(&hello(7, 2))), Err(Code::Aborted));
    }

    #[tokio::test]
    async fn only_the_newest_heartbeat_is_sent_before_queued_messages() {
        let (link, messages) = StandbyLink::new();
        let standby = StandbyState::new(1, hello(7, 1), link);
        assert!(standby.send_heartbeat(1) && standby.send_heartbeat(2));
        drop(standby);
        let received: Vec<_> = futures::StreamExt::collect::<Vec<_>>(messages).await;
        let times: Vec<u64> = received.into_iter().flatten().map(|batch| batch.time).collect();
        assert_eq!(times, [2, 0]);
    }
}
