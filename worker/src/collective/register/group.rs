//! One group of a register: the devices that have joined it, and the callers that wait until it is complete.

use super::instance::Instance;
use super::{Answers, Join, Members, Met, Waiting};
use graph::{Code, DeviceAttributes};
use proto::Status;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// A group that is complete, or whose members the leader still awaits.
#[derive(Debug)]
pub(super) struct Group<G, I> {
    pub(super) size: usize,
    /// The number of the last request that used the group.
    pub(super) used: u64,
    pub(super) joined: Vec<Joined>,
    /// The refusal of a device before the group was complete.
    failure: Option<GroupFailure>,
    /// The members in the order of their ranks; set when all have joined.
    pub(super) members: Option<Members>,
    pub(super) waiting: Vec<Waiting<G>>,
    pub(super) instances: FxHashMap<i32, Instance<I>>,
}

/// The refusal of a device. Each session receives it once; the session's next step replaces the group.
#[derive(Debug)]
struct GroupFailure {
    status: Status,
    step_id: i64,
    /// The sessions of the members that have received the refusal.
    told: Vec<Arc<str>>,
}

/// A device that has joined a group.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) session: Arc<str>,
    pub(super) device: DeviceAttributes,
    pub(super) rank: Option<usize>,
}

impl<G, I> Group<G, I> {
    pub(super) fn new(size: usize) -> Group<G, I> {
        Group {
            size,
            used: 0,
            joined: Vec::new(),
            failure: None,
            members: None,
            waiting: Vec::new(),
            instances: FxHashMap::default(),
        }
    }

    pub(super) fn has_session(&self, session: &str) -> bool {
        self.joined.iter().any(|joined| &*joined.session == session)
    }

    /// Returns whether the members belong to several sessions.
    pub(super) fn is_shared(&self) -> bool {
        self.joined.windows(2).any(|pair| pair[0].session != pair[1].session)
    }

    pub(super) fn is_superseded_by(&self, join: &Join) -> bool {
        if let Some(GroupFailure { step_id, told, .. }) = &self.failure {
            return *step_id != join.step_id && told.contains(&join.session);
        }
        let member = self.joined.iter().find(|joined| joined.device.name == join.device.name);
        member.is_some_and(|joined| {
            joined.session != join.session || joined.device.incarnation != join.device.incarnation
        })
    }

    /// Returns the refusal as the answer to the last caller and, if the group is not complete, to all waiting callers.
    pub(super) fn refuse(&mut self, join: &Join, status: Status) -> Answers<G, Met> {
        let mut first = self.waiting.len() - 1;
        if self.members.is_none() {
            let told = self.joined.iter().map(|joined| joined.session.clone()).collect();
            let failure = GroupFailure { status: status.clone(), step_id: join.step_id, told };
            self.failure.get_or_insert(failure).told.push(join.session.clone());
            first = 0;
        }
        self.waiting.drain(first..).map(|w| (w.caller, Err(status.clone()))).collect()
    }

    /// Checks that a device may join the group.
    pub(super) fn check(&self, join: &Join) -> Result<(), Status> {
        if let Some(failure) = &self.failure {
            return Err(failure.status.clone());
        }
        let Join { group_key, group_size, device, .. } = join;
        let refused = |reason: String| {
            let mut text =
                format!("Device {} is joining a group {reason} (group_key={group_key})", device.name);
            for (i, joined) in self.joined.iter().enumerate() {
                // Writing to a string does not fail.
                let _ = write!(text, "{}{}", if i == 0 { "; members: " } else { ", " }, joined.device.name);
            }
            Err(Status::new(Code::Internal, text))
        };
        if *group_size != self.size {
            return refused(format!("with size{group_size}, but that group has size {}", self.size));
        }
        if let Some(first) = self.joined.first()
            && first.device.name.device_type != device.name.device_type
        {
            return refused(format!(
                "with type {:?}, but that group has type {:?}",
                device.name.device_type, first.device.name.device_type
            ));
        }
        let member = self.joined.iter().find(|joined| joined.device.name == device.name);
        if let Some(rank) = join.rank {
            if let Some(before) = member.and_then(|member| member.rank).filter(|before| *before != rank) {
                return refused(format!("with rank {rank}, but it has rank {before} in that group"));
            }
            let other = self.joined.iter().find(|other| other.rank == Some(rank));
            if let Some(other) = other.filter(|other| other.device.name != device.name) {
                return refused(format!("with rank {rank}, which {} has in that group", other.device.name));
            }
        }
        let is_member = member.is_some();
        if self.joined.len() == self.size && !is_member {
            return refused("that is already full".into());
        }
        Ok(())
    }
}

/// Returns the members in the order of their ranks.
pub(super) fn ranked(joined: &[Joined]) -> Members {
    let mut ranked: Vec<&Joined> = joined.iter().collect();
    ranked.sort_by_cached_key(|member| (member.rank, member.device.name.clone()));
    ranked.into_iter().map(|member| member.device.clone()).collect()
}
