//! Collectives between the devices of a cluster: a leader's register of groups, the members of each session, and the
//! schedules and courses of operations.

mod assembly;
mod buffer;
mod claims;
mod communicators;
mod course;
mod group;
mod leader;
mod member;
mod messages;
mod register;
mod schedule;
#[cfg(test)]
mod simulation;
mod standing;

pub(crate) use assembly::{request_of as assembly_request_of, response_of as assembly_response_of};
pub(crate) use buffer::recv_buf;
pub(crate) use communicators::entered_response;
pub(crate) use course::COLLECTIVE_EDGE;
pub use group::{Group, GroupCall, GroupCallId, GroupFinish};
pub(crate) use leader::{Leader, end_sequence};
pub(crate) use member::{COLLECTIVES_KEY, SessionCollectives};
pub(crate) use messages::{
    agree_of, complete_group_response, complete_instance_response, deadline_of, enter_request_of, join_of,
};
pub(crate) use standing::answer_standing;
