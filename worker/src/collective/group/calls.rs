//! The calls of a group's collectives on one member, as a value without sockets: the calls in progress, the elements
//! that other members have sent for them, and a check that all members describe a call in the same way.

use super::member_name;
use device::Error;
use graph::{Code, DeviceAttributes, Tensor};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

/// Number of ended calls whose descriptions are kept, so that late messages can be compared with them.
const MAX_ENDED: usize = 64;

/// The calls of one member. Each member numbers its calls from 0, so calls with equal numbers belong together. `R` is
/// the type of the callbacks that receive elements.
#[derive(Debug)]
pub(super) struct Calls<R> {
    members: Arc<[DeviceAttributes]>,
    rank: usize,
    /// The number of the next call.
    next: u64,
    open: FxHashMap<u64, Call<R>>,
    ended: VecDeque<EndedCall>,
    /// An error of a call that had already succeeded on this member; the next call reports it.
    late: Option<Error>,
}

#[derive(Debug)]
struct Call<R> {
    /// This member's description of the call; `None` until the call has begun on this member.
    description: Option<Arc<str>>,
    /// The descriptions of the members that began the call before this one, with their ranks.
    claims: Vec<(usize, Arc<str>)>,
    failure: Option<Failure>,
    slots: Vec<Slot<R>>,
    /// The deadline of the call; `None` until the call has begun on this member.
    deadline: Option<Instant>,
}

#[derive(Debug)]
struct Failure {
    error: Error,
    /// True if the other members have been told of the failure.
    is_told: bool,
}

/// A part of a call: the elements that one member sends in one phase.
#[derive(Debug)]
struct Slot<R> {
    peer: usize,
    part: Arc<str>,
    content: Content<R>,
}

#[derive(Debug)]
enum Content<R> {
    Arrived(Tensor),
    Awaited(R),
}

#[derive(Debug)]
struct EndedCall {
    number: u64,
    description: Arc<str>,
    has_succeeded: bool,
}

/// The result of accepting a message.
#[derive(Debug)]
pub(super) enum Accepted<R> {
    /// The message was stored, or belongs to a call that has ended.
    Kept,
    Delivered(R, Tensor),
    /// The call has failed with this error, and so have these receivers.
    Failed(Vec<R>, Error),
    /// The call had already succeeded on this member; the other members must be told of this failure.
    FailedLate(Error),
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Awaited<R> {
    Waiting,
    Ready(R, Result<Tensor, Error>),
}

impl<R> Calls<R> {
    pub(super) fn new(members: Arc<[DeviceAttributes]>, rank: usize) -> Calls<R> {
        Calls {
            members,
            rank,
            next: 0,
            open: FxHashMap::default(),
            ended: VecDeque::with_capacity(MAX_ENDED),
            late: None,
        }
    }

    /// Begins the next call. Returns its number, and its failure if it has failed already: members that began it
    /// earlier describe it differently or have reported a failure, or an earlier call was found to have failed after it
    /// had succeeded here.
    pub(super) fn begin(&mut self, description: &Arc<str>) -> (u64, Option<Error>) {
        let number = self.next;
        self.next += 1;
        let call = self.open.entry(number).or_default();
        call.description = Some(description.clone());
        let differing = call.claims.iter().find(|(_, theirs)| theirs != description).cloned();
        let conflict = differing.map(|(peer, theirs)| self.conflict(number, description, peer, &theirs));
        let late = self.late.take();
        let call = self.open.entry(number).or_default();
        if call.failure.is_none() {
            call.failure = conflict.or(late).map(|error| Failure { error, is_told: false });
        }
        (number, call.failure.as_ref().map(|failure| failure.error.clone()))
    }

    /// Sets the deadline of a call in progress.
    pub(super) fn set_deadline(&mut self, number: u64, deadline: Instant) {
        if let Some(call) = self.open.get_mut(&number) {
            call.deadline = Some(deadline);
        }
    }

    /// Returns the numbers of the calls in progress whose deadlines have passed.
    pub(super) fn overdue(&self, now: Instant) -> Vec<u64> {
        let is_overdue = |call: &Call<R>| call.deadline.is_some_and(|deadline| deadline <= now);
        self.open.iter().filter(|(_, call)| is_overdue(call)).map(|(number, _)| *number).collect()
    }

    /// Accepts a member's description of a call, and elements if it has sent any.
    pub(super) fn accept(
        &mut self,
        number: u64,
        peer: usize,
        description: &Arc<str>,
        elements: Option<(Arc<str>, Tensor)>,
    ) -> Accepted<R> {
        if self.has_ended(number) {
            return self.accept_late(number, peer, description);
        }
        let call = self.open.entry(number).or_default();
        if call.failure.is_some() {
            return Accepted::Kept;
        }
        match call.description.clone() {
            Some(own) if own != *description => {
                let error = self.conflict(number, &own, peer, description);
                return Accepted::Failed(self.fail(number, error.clone(), false), error);
            }
            None if !call.claims.iter().any(|(claimant, _)| *claimant == peer) => {
                call.claims.push((peer, description.clone()));
            }
            _ => {}
        }
        let Some((part, tensor)) = elements else { return Accepted::Kept };
        self.open.entry(number).or_default().deliver(peer, part, tensor)
    }

    /// Compares a description with that of a call that has ended with success.
    fn accept_late(&mut self, number: u64, peer: usize, description: &Arc<str>) -> Accepted<R> {
        let ended = self.ended.iter().find(|ended| ended.number == number);
        match ended.filter(|ended| ended.has_succeeded && ended.description != *description) {
            None => Accepted::Kept,
            Some(ended) => {
                let error = self.conflict(number, &ended.description.clone(), peer, description);
                self.late.get_or_insert_with(|| error.clone());
                Accepted::FailedLate(error)
            }
        }
    }

    /// Receives the elements of a part. Fails if the call has failed, or if the member has left (`has_left`) without
    /// sending them.
    pub(super) fn receive(
        &mut self,
        number: u64,
        peer: usize,
        part: &str,
        receiver: R,
        has_left: bool,
    ) -> Awaited<R> {
        let left = || left(&self.members, peer);
        let Some(call) = self.open.get_mut(&number) else {
            return Awaited::Ready(receiver, Err(Error::internal(format!("call {number} has ended"))));
        };
        if let Some(failure) = &call.failure {
            return Awaited::Ready(receiver, Err(failure.error.clone()));
        }
        let arrived = |slot: &Slot<R>| slot.peer == peer && *slot.part == *part;
        match call.slots.iter().position(arrived).map(|at| call.slots.swap_remove(at).content) {
            Some(Content::Arrived(tensor)) => Awaited::Ready(receiver, Ok(tensor)),
            Some(Content::Awaited(_)) => {
                Awaited::Ready(receiver, Err(Error::internal(format!("{part} is received twice"))))
            }
            None if has_left => Awaited::Ready(receiver, Err(left())),
            None => {
                call.slots.push(Slot { peer, part: part.into(), content: Content::Awaited(receiver) });
                Awaited::Waiting
            }
        }
    }

    /// Records that a call has failed; the first failure is kept. Returns the receivers of the call. `is_told` is true
    /// if the other members have been told of the failure. If the call has succeeded on this member, the next call
    /// reports the failure.
    pub(super) fn fail(&mut self, number: u64, error: Error, is_told: bool) -> Vec<R> {
        if self.has_ended(number) {
            if self.ended.iter().any(|ended| ended.number == number && ended.has_succeeded) {
                self.late.get_or_insert(error);
            }
            return Vec::new();
        }
        // The failure of this call is not reported a second time by the next call.
        self.late.take_if(|late| late.to_string() == error.to_string());
        let call = self.open.entry(number).or_default();
        call.failure.get_or_insert(Failure { error, is_told });
        call.take_receivers()
    }

    /// Fails the calls that await elements of a member that has left. Returns the receivers of these calls.
    pub(super) fn leave(&mut self, peer: usize) -> Vec<R> {
        let error = left(&self.members, peer);
        let awaits = |call: &Call<R>| call.awaited().any(|awaited| awaited == peer);
        let numbers: Vec<u64> = self.open.iter().filter(|(_, call)| awaits(call)).map(|(n, _)| *n).collect();
        numbers.into_iter().flat_map(|number| self.fail(number, error.clone(), true)).collect()
    }

    /// Fails all calls that have begun. Returns the receivers of these calls.
    pub(super) fn fail_all(&mut self, error: &Error) -> Vec<R> {
        let numbers: Vec<u64> = self.open.keys().copied().collect();
        numbers.into_iter().flat_map(|number| self.fail(number, error.clone(), true)).collect()
    }

    /// Ends a call with the member's result. Returns the result to report, and whether the other members must be told
    /// of a failure.
    pub(super) fn end(
        &mut self,
        number: u64,
        result: Result<Tensor, Error>,
    ) -> (Result<Tensor, Error>, bool) {
        let Some(call) = self.open.remove(&number) else { return (result, false) };
        let (result, is_told) = match call.failure {
            Some(Failure { error, is_told }) => (Err(error), is_told),
            None => (result, false),
        };
        if self.ended.len() == MAX_ENDED {
            self.ended.pop_front();
        }
        let description = call.description.unwrap_or_default();
        self.ended.push_back(EndedCall { number, description, has_succeeded: result.is_ok() });
        let must_tell = result.is_err() && !is_told;
        (result, must_tell)
    }

    /// Returns the ranks of the members whose elements a call awaits, in ascending order.
    pub(super) fn awaited(&self, number: u64) -> Vec<usize> {
        let mut ranks: Vec<usize> = self.open.get(&number).into_iter().flat_map(Call::awaited).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns the description of a call in progress.
    pub(super) fn description(&self, number: u64) -> Option<Arc<str>> {
        self.open.get(&number)?.description.clone()
    }

    /// Returns the number of parts that a member has sent and that no call has received yet.
    pub(super) fn untaken(&self, peer: usize) -> usize {
        let is_untaken = |slot: &&Slot<R>| slot.peer == peer && matches!(slot.content, Content::Arrived(_));
        self.open.values().flat_map(|call| call.slots.iter().filter(is_untaken)).count()
    }

    /// Returns whether a call awaits elements of a member.
    pub(super) fn awaits(&self, peer: usize) -> bool {
        self.open.values().any(|call| call.awaited().any(|awaited| awaited == peer))
    }

    fn has_ended(&self, number: u64) -> bool {
        number < self.next && !self.open.contains_key(&number)
    }

    /// Returns the error for a call that two members describe differently; both members produce the same text.
    fn conflict(&self, number: u64, own: &str, peer: usize, theirs: &str) -> Error {
        let mut sides = [(self.rank, own), (peer, theirs)];
        sides.sort_unstable();
        let [first, second] =
            sides.map(|(rank, call)| format!("{} calls {call}", member_name(&self.members, rank)));
        Error::new(
            Code::InvalidArgument,
            format!("the members disagree in call {number}: {first}, but {second}"),
        )
    }
}

impl<R> Default for Call<R> {
    fn default() -> Call<R> {
        Call { description: None, claims: Vec::new(), failure: None, slots: Vec::new(), deadline: None }
    }
}

impl<R> Call<R> {
    fn deliver(&mut self, peer: usize, part: Arc<str>, tensor: Tensor) -> Accepted<R> {
        let is_awaited = |slot: &Slot<R>| {
            slot.peer == peer && slot.part == part && matches!(slot.content, Content::Awaited(_))
        };
        match self.slots.iter().position(is_awaited).map(|at| self.slots.swap_remove(at).content) {
            Some(Content::Awaited(receiver)) => Accepted::Delivered(receiver, tensor),
            _ => {
                self.slots.push(Slot { peer, part, content: Content::Arrived(tensor) });
                Accepted::Kept
            }
        }
    }

    fn awaited(&self) -> impl Iterator<Item = usize> {
        let awaited = self.slots.iter().filter(|slot| matches!(slot.content, Content::Awaited(_)));
        awaited.map(|slot| slot.peer)
    }

    fn take_receivers(&mut self) -> Vec<R> {
        let slots = std::mem::take(&mut self.slots).into_iter();
        let receivers = slots.filter_map(|slot| match slot.content {
            Content::Awaited(receiver) => Some(receiver),
            Content::Arrived(_) => None,
        });
        receivers.collect()
    }
}

/// Returns the error for elements of a member that has left the group.
pub(super) fn left(members: &[DeviceAttributes], peer: usize) -> Error {
    Error::new(Code::Unavailable, format!("{} has left the group", member_name(members, peer)))
}
