//! Where kernels on several GPUs meet for what they compute together: who has come, who is waited for, and how it ends.
//! What then happens on the GPUs is not here.

use super::driver::Reduction;
use device::Error;
use graph::{DType, DeviceName, Shape};
use std::sync::Arc;

/// What all who meet must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) members: usize,
    pub(crate) reduction: Reduction,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

/// One who comes.
#[derive(Debug)]
pub(crate) struct Member<P> {
    pub(crate) device: DeviceName,
    pub(crate) node: Arc<str>,
    pub(crate) part: P,
}

/// A meeting, over and over: when all have come, the next may begin. Once it has failed it has for good.
#[derive(Debug)]
pub(crate) struct Meeting<P> {
    terms: Option<Terms>,
    present: Vec<Member<P>>,
    failure: Option<Error>,
}

/// What follows from somebody's coming.
#[derive(Debug)]
pub(crate) enum Arrival<P> {
    /// Others are still to come.
    Waits,
    /// All are here, in the order of their devices.
    Complete(Vec<Member<P>>),
    /// These will not meet any more.
    Failed(Error, Vec<Member<P>>),
}

impl<P> Default for Meeting<P> {
    fn default() -> Meeting<P> {
        Meeting { terms: None, present: Vec::new(), failure: None }
    }
}

impl<P> Meeting<P> {
    pub(crate) fn arrive(&mut self, terms: Terms, member: Member<P>) -> Arrival<P> {
        if let Some(failure) = &self.failure {
            return Arrival::Failed(failure.clone().derived(), vec![member]);
        }
        let refusal = self.refusal(&terms, &member);
        self.present.push(member);
        if let Some(refusal) = refusal {
            return Arrival::Failed(refusal.clone(), self.fail(refusal));
        }
        if self.present.len() < terms.members {
            self.terms = Some(terms);
            return Arrival::Waits;
        }
        self.terms = None;
        let mut all = std::mem::take(&mut self.present);
        all.sort_by(|a, b| a.device.cmp(&b.device));
        Arrival::Complete(all)
    }

    /// Ends the meeting; those who wait.
    pub(crate) fn fail(&mut self, reason: Error) -> Vec<Member<P>> {
        self.failure.get_or_insert(reason);
        std::mem::take(&mut self.present)
    }

    /// Why somebody cannot join those who are here.
    fn refusal(&self, terms: &Terms, member: &Member<P>) -> Option<Error> {
        let Member { device, node, .. } = member;
        if let Some(twin) = self.present.iter().find(|present| present.device == *device) {
            let count = terms.members;
            return Some(Error::invalid(format!(
                "{} and {node} on {device} are parts of one collective of {count} devices: it takes one part of each",
                twin.node
            )));
        }
        let (agreed, first) = self.terms.as_ref().zip(self.present.first())?;
        (agreed != terms).then(|| {
            Error::invalid(format!(
                "{node} and {} are parts of one collective, and do not agree: {terms} against {agreed}",
                first.node
            ))
        })
    }
}

impl std::fmt::Display for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Terms { members, reduction, dtype, shape } = self;
        write!(f, "{reduction:?} of {dtype}{shape} on {members} devices")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Result;
    use graph::{Code, TaskName};

    fn terms(size: usize) -> Result<Terms> {
        let (reduction, dtype) = (Reduction::Sum, DType::Float);
        Ok(Terms { members: 3, reduction, dtype, shape: Shape::new(&[size])? })
    }

    fn member(id: u32) -> Member<u32> {
        let device = DeviceName::new(&TaskName::new("w", 0), "GPU", id);
        Member { device, node: format!("sum_{id}").into(), part: id }
    }

    fn parts(members: Vec<Member<u32>>) -> Vec<u32> {
        members.into_iter().map(|member| member.part).collect()
    }

    #[test]
    fn it_begins_when_all_have_come_and_then_anew() -> Result<()> {
        let mut meeting = Meeting::default();
        for order in [[2, 0, 1], [1, 2, 0]] {
            let [first, second, last] = order.map(member);
            assert!(matches!(meeting.arrive(terms(4)?, first), Arrival::Waits));
            assert!(matches!(meeting.arrive(terms(4)?, second), Arrival::Waits));
            let Arrival::Complete(all) = meeting.arrive(terms(4)?, last) else { panic!("{meeting:?}") };
            assert_eq!(parts(all), [0, 1, 2]);
        }
        // Another turn may be of another size.
        assert!(matches!(meeting.arrive(terms(5)?, member(1)), Arrival::Waits));
        Ok(())
    }

    #[test]
    fn those_who_do_not_agree_fail_together_and_so_does_who_comes_later() -> Result<()> {
        let mut meeting = Meeting::default();
        assert!(matches!(meeting.arrive(terms(4)?, member(0)), Arrival::Waits));
        let Arrival::Failed(error, all) = meeting.arrive(terms(5)?, member(1)) else { panic!("{meeting:?}") };
        assert_eq!((parts(all), error.code()), (vec![0, 1], Code::InvalidArgument));
        assert_eq!(
            error.to_string(),
            "sum_1 and sum_0 are parts of one collective, and do not agree: Sum of float[5] on 3 devices against Sum of \
             float[4] on 3 devices"
        );
        let Arrival::Failed(error, all) = meeting.arrive(terms(4)?, member(2)) else { panic!("{meeting:?}") };
        assert_eq!((parts(all), error.is_derived()), (vec![2], true));
        Ok(())
    }

    #[test]
    fn a_device_has_one_part() -> Result<()> {
        let mut meeting = Meeting::default();
        assert!(matches!(meeting.arrive(terms(4)?, member(1)), Arrival::Waits));
        let Arrival::Failed(error, all) = meeting.arrive(terms(4)?, member(1)) else { panic!("{meeting:?}") };
        assert_eq!(parts(all), [1, 1]);
        assert!(error.to_string().contains("it takes one part of each"), "{error}");
        Ok(())
    }

    #[test]
    fn a_cancelled_meeting_gives_back_who_waits_once() -> Result<()> {
        let mut meeting = Meeting::default();
        assert!(matches!(meeting.arrive(terms(4)?, member(2)), Arrival::Waits));
        assert!(matches!(meeting.arrive(terms(4)?, member(0)), Arrival::Waits));
        let cancelled = Error::new(Code::Cancelled, "enough");
        assert_eq!(parts(meeting.fail(cancelled.clone())), [2, 0]);
        assert_eq!(parts(meeting.fail(Error::internal("later"))), [0; 0]);
        let Arrival::Failed(error, all) = meeting.arrive(terms(4)?, member(1)) else { panic!("{meeting:?}") };
        assert_eq!((parts(all), error), (vec![1], cancelled.derived()));
        Ok(())
    }
}
