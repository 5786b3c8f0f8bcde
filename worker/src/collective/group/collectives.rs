//! The collectives of a group on one member, from their start to their result.

use super::call_rendezvous::CallRendezvous;
use super::calls::Accepted;
use super::envelope::{Envelope, Kind};
use super::{Finish, Group, GroupCall, GroupCallId, GroupFinish, member_name};
use crate::collective::course::{Course, Plan};
use crate::collective::schedule::{Member, Schedule};
use device::rendezvous::{Rendezvous, Sent};
use device::{Error, Value};
use graph::Tensor;
use proto::Status;
use std::sync::Arc;

impl Group {
    /// Takes part in a collective. `finish` is called with the member's output, or the error that ended the call, on
    /// this thread or on one that handles messages. All members must start the same calls in the same order.
    pub fn start(self: &Arc<Self>, call: GroupCall, finish: GroupFinish) -> GroupCallId {
        let description: Arc<str> = call.description().into();
        let (number, failure) = {
            let mut state = self.state.lock();
            let (number, failure) = state.calls.begin(&description);
            state.calls.set_deadline(number, self.deadline());
            (number, state.failure.clone().or(failure))
        };
        let own = self.clone();
        let finish: Finish = Box::new(move |output| own.finish(number, output, finish));
        match failure.map_or_else(|| self.plan(number, &call), Err) {
            Ok(plan) => {
                let rendezvous = Arc::new(CallRendezvous { group: self.clone(), number, description });
                Course::start(plan, call.input, rendezvous, self.worker.pool.clone(), finish, None);
            }
            Err(error) => finish(Err(error)),
        }
        GroupCallId::Collective(number)
    }

    /// Sends the members for which a call waits the description of that call, so that a member in a different call
    /// detects the conflict.
    pub fn probe(&self, call: GroupCallId) {
        let GroupCallId::Collective(number) = call else { return };
        let (awaited, description) = {
            let state = self.state.lock();
            (state.calls.awaited(number), state.calls.description(number))
        };
        let Some(description) = description else { return };
        let envelope = Envelope { text: description.to_string(), ..Envelope::new(Kind::Probe, number) };
        for peer in awaited {
            // Messages to unreachable members may be lost: the loss of a member ends the call anyway.
            let _ = self.post(peer, &envelope, None);
        }
        self.rendezvous().flush();
    }

    /// Returns the plan of a call's course.
    ///
    /// # Errors
    /// `InvalidArgument` and `Unimplemented` for a call that does not fit the group.
    fn plan(&self, number: u64, call: &GroupCall) -> device::Result<Plan> {
        call.check(self.members.len())?;
        let width = call.width()?;
        let count = match &call.input {
            Some(input) if !call.counts_output() => input.num_elements(),
            _ => call.output.num_elements(),
        };
        let member = Member { rank: self.rank, size: self.members.len(), source: call.root, count, width };
        Ok(Plan {
            members: self.members.clone(),
            devices: self.devices.clone(),
            rank: self.rank,
            operation: call.operation,
            dtype: call.dtype,
            width,
            output: call.output.clone(),
            name: number.to_string(),
            foreign: None,
            schedule: Schedule::new(call.operation, member),
        })
    }

    /// Ends a call, and tells the other members if it has failed and they have not been told.
    fn finish(&self, number: u64, output: device::Result<Tensor>, finish: GroupFinish) {
        let (output, must_tell) = {
            let mut state = self.state.lock();
            let must_tell_any = state.failure.is_none();
            let (output, must_tell) = state.calls.end(number, output);
            (output, must_tell && must_tell_any)
        };
        if let Err(error) = &output
            && must_tell
        {
            self.tell(number, error);
        }
        finish(output.map_err(|error| Status::new(error.code(), error.to_string())));
    }

    /// Tells all other members that a call has failed.
    pub(super) fn tell(&self, number: u64, error: &Error) {
        let who = member_name(&self.members, self.rank);
        let text = match error.to_string() {
            text if text.contains(&who) => text,
            text => format!("{who}: {text}"),
        };
        let envelope = Envelope { text, code: error.code().number(), ..Envelope::new(Kind::Failure, number) };
        for peer in self.others() {
            // A member that is lost or has left does not need the message.
            let _ = self.post(peer, &envelope, None);
        }
        self.rendezvous().flush();
    }

    /// Handles a member's description of a call, and the elements that it has sent with it.
    pub(super) fn handle_call(
        &self,
        peer: usize,
        number: u64,
        text: &str,
        elements: Option<(Arc<str>, Tensor)>,
    ) {
        let accepted = {
            let mut state = self.state.lock();
            state.streams[peer].hear_of(number);
            state.calls.accept(number, peer, &text.into(), elements)
        };
        match accepted {
            Accepted::Kept => {}
            Accepted::Delivered(receive, tensor) => {
                receive(Ok(Sent { value: Value::Host(tensor), is_dead: false }));
            }
            Accepted::Failed(receivers, error) => {
                receivers.into_iter().for_each(|receive| receive(Err(error.clone())));
            }
            Accepted::FailedLate(error) => self.tell(number, &error),
        }
    }
}
