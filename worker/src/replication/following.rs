//! A standby, as the process that serves its task knows it, and the way to it.

use super::{LEASE, pieces};
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

/// About so many bytes are in one message.
const MESSAGE: usize = 4 << 20;
/// So many messages of everything are on their way at most.
const MESSAGES_ON_THE_WAY: usize = 8;
/// So many batches are on their way at most; what changes meanwhile is the next.
const BATCHES_ON_THE_WAY: usize = 2;

/// A standby, or one that has lost its link and whose process may live.
pub(super) struct Following {
    /// Of its link: another link is another number.
    pub(super) id: u64,
    pub(super) presence: String,
    pub(super) token: u64,
    /// The standby's own number of its link.
    attempt: u64,
    /// Whether it would take over if this process died now, or soon: then runs wait for it.
    pub(super) may_take_over: bool,
    /// `None` once it is lost.
    link: Option<Link>,
    /// The batch that tells everything, once that is on its way.
    everything: Option<u64>,
    applied: u64,
    /// When the last word was sent that it has heard.
    heard: Instant,
    /// What it is sent and has not applied since it was told everything, by number: another link takes that up.
    unapplied: VecDeque<(u64, Vec<Batch>)>,
}

impl Following {
    /// One that holds nothing of what this process has; if it holds something else, it is told to forget that.
    pub(super) fn new(id: u64, hello: FollowRequest, link: Link) -> Following {
        let FollowRequest { presence, token, holds_state, attempt, .. } = hello;
        link.send(Batch { is_everything: true, has_more: true, ..Batch::default() });
        Following {
            id,
            presence,
            token,
            attempt,
            may_take_over: holds_state,
            link: Some(link),
            everything: None,
            applied: 0,
            heard: Instant::now(),
            unapplied: VecDeque::new(),
        }
    }

    /// Whether who says this may have its place.
    ///
    /// # Errors
    /// `Unavailable` to another while this one is there or may have taken over, `Aborted` to what it has said before.
    pub(super) fn gives_place_to(&self, hello: &FollowRequest) -> Result<(), Status> {
        if hello.token == self.token {
            let is_old = hello.attempt < self.attempt;
            return if is_old { Err(Status::new(Code::Aborted, "there is a later link")) } else { Ok(()) };
        }
        let presence = &self.presence;
        let why = match (self.is_linked(), self.may_take_over) {
            (true, _) => format!("there is a standby, whose process holds {presence} open"),
            (false, true) => format!(
                "there was a standby, whose process held {presence} open: it is not seen to have ended, and may have \
                 taken over"
            ),
            (false, false) => return Ok(()),
        };
        Err(Status::new(Code::Unavailable, why))
    }

    /// Whether it is who says this, and can go on with what it has.
    pub(super) fn can_resume(&self, hello: &FollowRequest) -> bool {
        hello.holds_state && self.may_take_over && self.everything.is_some() && hello.token == self.token
    }

    /// Goes on over another link.
    pub(super) fn resume(&mut self, id: u64, hello: &FollowRequest, link: Link) {
        (self.id, self.attempt) = (id, hello.attempt);
        self.has_applied(hello.applied);
        self.unapplied.iter().flat_map(|(_, batch)| batch).for_each(|message| _ = link.send(message.clone()));
        self.link = Some(link);
    }

    pub(super) fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    pub(super) fn unlink(&mut self) {
        if let Some(link) = self.link.take() {
            link.room.close();
        }
    }

    /// Whether it can be told what changes: it has not lost its link, nor come anew and not been told everything.
    pub(super) fn follows(&self) -> bool {
        self.is_linked() && self.everything.is_some()
    }

    /// It has heard what was sent then; whether it had heard nothing for long.
    pub(super) fn has_heard(&mut self, sent: Instant) -> bool {
        let was_silent = self.is_silent();
        self.heard = self.heard.max(sent);
        was_silent
    }

    /// It may have taken over by now.
    pub(super) fn is_silent(&self) -> bool {
        self.heard.elapsed() > LEASE
    }

    /// Tells it that the task is served; whether it has a link.
    pub(super) fn tell_the_time(&self, time: u64) -> bool {
        self.link.as_ref().is_some_and(|link| link.time.send(time).is_ok())
    }

    /// How many bytes it is sent and has not applied.
    pub(super) fn to_apply(&self) -> usize {
        let messages = self.unapplied.iter().flat_map(|(_, batch)| batch);
        messages.flat_map(|message| &message.changes).map(pieces::size).sum()
    }

    pub(super) fn has_enough_to_do(&self) -> bool {
        self.unapplied.len() >= BATCHES_ON_THE_WAY
    }

    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    pub(super) fn has_applied(&mut self, number: u64) {
        self.applied = number;
        self.unapplied.retain(|(sent, _)| *sent > number);
    }

    pub(super) fn everything(&self) -> Option<u64> {
        self.everything
    }

    /// The batch of this number will tell everything.
    pub(super) fn begin_everything(&mut self, number: u64) -> Option<(Link, u64)> {
        (self.may_take_over, self.everything) = (false, Some(number));
        self.unapplied.clear();
        Some((self.link.clone()?, number))
    }

    /// Puts a batch on its way, or keeps it for the next link.
    pub(super) fn send(&mut self, number: u64, batch: Vec<Batch>) {
        if let Some(link) = &self.link {
            batch.iter().for_each(|message| _ = link.send(message.clone()));
        }
        self.unapplied.push_back((number, batch));
    }
}

/// The way to a standby, until it is lost.
#[derive(Clone)]
pub(super) struct Link {
    messages: mpsc::UnboundedSender<Batch>,
    /// The newest goes before all messages.
    time: watch::Sender<u64>,
    /// For more messages of everything.
    room: Arc<Semaphore>,
}

impl Link {
    /// A way to a standby, and what comes out at its end.
    pub(super) fn new() -> (Link, impl Stream<Item = Result<Batch, tonic::Status>> + Send + 'static) {
        let (messages, to_send) = mpsc::unbounded_channel();
        let room = Arc::new(Semaphore::new(MESSAGES_ON_THE_WAY));
        let (time, times) = watch::channel(0);
        let outlet = Outlet { messages: to_send, times, room: room.clone() };
        let next = |mut outlet: Outlet| async { outlet.next().await.map(|message| (Ok(message), outlet)) };
        (Link { messages, time, room }, stream::unfold(outlet, next))
    }

    /// Whether anybody may hear it. Who is not there any more is found by the end of what it says.
    fn send(&self, message: Batch) -> bool {
        self.messages.send(message).is_ok()
    }

    /// Waits until few messages are on their way; whether the standby is still there. Not from asynchronous code.
    pub(super) fn send_when_there_is_room(&self, message: Batch) -> bool {
        let Ok(permit) = Handle::current().block_on(self.room.acquire()) else { return false };
        permit.forget();
        self.send(message)
    }
}

/// The other end of a link; when it goes, nobody waits for room any more.
struct Outlet {
    messages: mpsc::UnboundedReceiver<Batch>,
    times: watch::Receiver<u64>,
    room: Arc<Semaphore>,
}

impl Outlet {
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

impl Drop for Outlet {
    fn drop(&mut self) {
        self.room.close();
    }
}

/// A batch in messages of bearable size, the last without `has_more`.
pub(super) fn messages(empty: Batch, changes: Vec<Change>) -> impl Iterator<Item = Batch> {
    let mut pieces = changes.into_iter().flat_map(|change| pieces::of(change, MESSAGE)).peekable();
    let mut is_over = false;
    std::iter::from_fn(move || {
        if is_over {
            return None;
        }
        let (mut batch, mut size) = (empty.clone(), 0);
        while let Some(piece) = pieces.next_if(|piece| size == 0 || size + pieces::size(piece) <= MESSAGE) {
            size += pieces::size(&piece).max(1);
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

    fn told(result: Result<(), Status>) -> Result<(), Code> {
        result.map_err(|status| status.code)
    }

    #[test]
    fn another_has_the_place_of_a_standby_only_once_that_is_seen_to_have_ended() {
        let (link, _messages) = Link::new();
        let mut standby = Following::new(1, hello(7, 3), link);
        let other = |standby: &Following| told(standby.gives_place_to(&hello(8, 9)));
        assert_eq!(other(&standby), Err(Code::Unavailable), "it is being told");
        standby.unlink();
        assert_eq!(other(&standby), Ok(()), "it has nothing, and is lost");
        standby.may_take_over = true;
        assert_eq!(other(&standby), Err(Code::Unavailable), "it may serve by now");
        // It may come back itself, and nothing that it said before counts.
        assert_eq!(told(standby.gives_place_to(&hello(7, 4))), Ok(()));
        assert_eq!(told(standby.gives_place_to(&hello(7, 2))), Err(Code::Aborted));
    }

    #[tokio::test]
    async fn the_time_goes_before_what_waits_and_the_newest_alone() {
        let (link, messages) = Link::new();
        let standby = Following::new(1, hello(7, 1), link);
        assert!(standby.tell_the_time(1) && standby.tell_the_time(2));
        drop(standby);
        let heard: Vec<_> = futures::StreamExt::collect::<Vec<_>>(messages).await;
        let times: Vec<u64> = heard.into_iter().flatten().map(|batch| batch.time).collect();
        assert_eq!(times, [2, 0]);
    }
}
