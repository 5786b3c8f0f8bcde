//! One instance of a group: the terms of the first member, and the members that have called.

use super::{Agree, Agreement, Terms, Waiting};
use graph::Code;
use proto::Status;

/// Number of ended steps that an instance remembers.
const MAX_ENDED: usize = 8;

/// An instance on which all members have agreed, or for whose members the leader still waits.
#[derive(Debug)]
pub(super) struct Instance<I> {
    pub(super) terms: Terms,
    /// A number by which instances are ordered by age.
    pub(super) number: u64,
    /// The node and device of the first member, as error messages name them.
    pub(super) first: String,
    /// The devices of the members that have called, each with the digest of its bucket.
    pub(super) come: Vec<(String, Option<i64>)>,
    pub(super) failure: Option<Status>,
    /// The id of the first member's step.
    pub(super) step_id: i64,
    /// The number of the iteration that repeated the agreement and so created this instance; `None` for a first
    /// agreement.
    renewal: Option<u64>,
    /// Earlier steps that did not complete the instance, each with the error for members that call late.
    ended: Vec<(i64, Status)>,
    pub(super) source: Option<usize>,
    pub(super) waiting: Vec<Waiting<I>>,
}

impl<I> Instance<I> {
    pub(super) fn new(agree: &Agree, number: u64, ended: Vec<(i64, Status)>) -> Instance<I> {
        Instance {
            terms: agree.terms.clone(),
            number,
            first: format!("'{}' on {}", agree.node, agree.device),
            come: Vec::new(),
            failure: None,
            step_id: agree.step_id,
            renewal: agree.renewal,
            ended,
            source: None,
            waiting: Vec::new(),
        }
    }

    pub(super) fn has_come(&self, device: &str) -> bool {
        self.come.iter().any(|(come, _)| come == device)
    }

    /// Returns the agreement of all members.
    pub(super) fn agreement(&self) -> Agreement {
        let first = self.come.first().and_then(|(_, bucket)| *bucket);
        let is_bucketed = first.is_some() && self.come.iter().all(|(_, bucket)| *bucket == first);
        Agreement { source: self.source, is_bucketed }
    }

    /// Returns the error of a step that ended before all its members had called; `None` for other steps.
    pub(super) fn end_of(&self, step_id: i64) -> Option<Status> {
        self.ended.iter().find(|(ended, _)| *ended == step_id).map(|(_, status)| status.clone())
    }

    /// Returns the steps that did not complete the instance, including this instance's own step if a member of another
    /// step has replaced the instance.
    pub(super) fn into_ended(mut self, agree: &Agree, members: usize, status: Status) -> Vec<(i64, Status)> {
        let is_incomplete = self.failure.is_some() || self.come.len() < members;
        if is_incomplete && self.step_id != agree.step_id && self.step_id != 0 {
            self.ended.truncate(MAX_ENDED - 1);
            self.ended.insert(0, (self.step_id, status));
        }
        self.ended
    }

    /// Returns whether the member's call replaces the instance. It does if the instance failed or stayed incomplete in
    /// another step, if the member is the first to repeat the agreement, or if the member has called before and now has
    /// other terms or has been told of a failure.
    pub(super) fn is_over(&self, agree: &Agree, members: usize) -> bool {
        let has_failed = self.failure.is_some();
        let is_other_step = self.step_id != agree.step_id;
        let is_left = is_other_step && self.step_id != 0 && agree.step_id != 0 && self.come.len() < members;
        let is_renewal = agree.renewal.is_some() && (is_other_step || self.renewal != agree.renewal);
        let has_other_bucket =
            self.come.iter().any(|(device, bucket)| *device == agree.device && *bucket != agree.bucket);
        let has_other_terms = self.terms != agree.terms || has_other_bucket;
        let has_come = self.has_come(&agree.device);
        (has_failed && is_other_step)
            || is_left
            || is_renewal
            || (has_come && (has_failed || has_other_terms))
    }

    /// Compares a member's terms with those of the first member, and records the source.
    pub(super) fn check(&mut self, agree: &Agree, rank: usize) -> Result<(), Status> {
        let Agree { group_key, instance_key, device, node, terms, .. } = agree;
        let (own, first) = (format!("'{node}' on {device}"), &self.first);
        if (terms.kind, terms.dtype) != (self.terms.kind, self.terms.dtype) {
            let text = format!(
                "Collective instance {instance_key} of group {group_key} expected type {} and data_type {} but got type {} \
                 and data_type {}: {first} came first, then {own}",
                self.terms.kind, self.terms.dtype, terms.kind, terms.dtype
            );
            return Err(Status::new(Code::Internal, text));
        }
        if let (Some(expected), Some(shape)) = (&self.terms.shape, &terms.shape)
            && expected != shape
        {
            let text = format!(
                "Shape mismatch in the collective instance {instance_key} of group {group_key}. Op at device {device} \
                 expected shape {shape} but another member in the group expected shape {expected}. {first} came first, \
                 then {own}"
            );
            return Err(Status::invalid(text));
        }
        let (functions, expected) = (&terms.functions, &self.terms.functions);
        if !functions.is_empty() && !expected.is_empty() && functions != expected {
            let text = format!(
                "Collective instance {instance_key} of group {group_key}: {first} computes {expected}, {own} {functions}"
            );
            return Err(Status::invalid(text));
        }
        if agree.is_source {
            match self.source {
                Some(source) if source != rank => {
                    let text = format!(
                        "Instance {instance_key} of group {group_key} already has source {source}, received second \
                         claim from {rank}: {first} came first, then {own}"
                    );
                    return Err(Status::new(Code::Internal, text));
                }
                _ => self.source = Some(rank),
            }
        }
        Ok(())
    }
}
