//! The barrier of a collective: it waits until all participants have joined, and fails if they do not agree on
//! the operation, dtype and shape. The GPU work is in `collective`.

use super::driver::Reduction;
use device::Error;
use graph::{DType, DeviceName, Shape};
use std::sync::Arc;

/// The properties that all participants of a collective must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveSignature {
    pub(crate) participants: usize,
    pub(crate) reduction: Reduction,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
}

/// One participant of a collective: its device, its node, and its input.
#[derive(Debug)]
pub(crate) struct Participant<P> {
    pub(crate) device: DeviceName,
    pub(crate) node: Arc<str>,
    pub(crate) input: P,
}

/// A reusable barrier: when all participants have joined, the next round may begin. A failure is permanent.
#[derive(Debug)]
pub(crate) struct CollectiveBarrier<P> {
    /// The signature of the current round, set by the first participant.
    signature: Option<CollectiveSignature>,
    arrived: Vec<Participant<P>>,
    failure: Option<Error>,
}

/// The result of a participant's arrival.
#[derive(Debug)]
pub(crate) enum Arrival<P> {
    /// More participants have to join.
    Waits,
    /// All participants of the round have joined; the list is sorted by device.
    Complete(Vec<Participant<P>>),
    /// The barrier has failed, and the caller completes these participants with the error.
    Failed(Error, Vec<Participant<P>>),
}

impl<P> Default for CollectiveBarrier<P> {
    fn default() -> CollectiveBarrier<P> {
        CollectiveBarrier { signature: None, arrived: Vec::new(), failure: None }
    }
}

impl<P> CollectiveBarrier<P> {
    /// Adds a participant, and returns whether the collective is complete, waits or has failed.
    pub(crate) fn arrive(
        &mut self,
        signature: CollectiveSignature,
        participant: Participant<P>,
    ) -> Arrival<P> {
        if let Some(failure) = &self.failure {
            return Arrival::Failed(failure.clone().derived(), vec![participant]);
        }
        let mismatch = self.mismatch(&signature, &participant);
        self.arrived.push(participant);
        if let Some(mismatch) = mismatch {
            return Arrival::Failed(mismatch.clone(), self.fail(mismatch));
        }
        if self.arrived.len() < signature.participants {
            self.signature = Some(signature);
            return Arrival::Waits;
        }
        self.signature = None;
        let mut all = std::mem::take(&mut self.arrived);
        all.sort_by(|a, b| a.device.cmp(&b.device));
        Arrival::Complete(all)
    }

    /// Fails the barrier for good, and returns the participants that were waiting.
    pub(crate) fn fail(&mut self, reason: Error) -> Vec<Participant<P>> {
        self.failure.get_or_insert(reason);
        std::mem::take(&mut self.arrived)
    }

    /// Returns the error if a participant does not agree with the signature of the round, or its device has
    /// joined already.
    fn mismatch(&self, signature: &CollectiveSignature, participant: &Participant<P>) -> Option<Error> {
        let Participant { device, node, .. } = participant;
        if let Some(twin) = self.arrived.iter().find(|arrived| arrived.device == *device) {
            let count = signature.participants;
            return Some(Error::invalid(format!(
                "{} and {node} on {device} are parts of one collective of {count} devices: it takes one part of each",
                twin.node
            )));
        }
        let (expected, first) = self.signature.as_ref().zip(self.arrived.first())?;
        (expected != signature).then(|| {
            Error::invalid(format!(
                "{node} and {} are parts of one collective, and do not agree: {signature} against {expected}",
                first.node
            ))
        })
    }
}

impl std::fmt::Display for CollectiveSignature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CollectiveSignature { participants, reduction, dtype, shape } = self;
        write!(f, "{reduction:?} of {dtype}{shape} on {participants} devices")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Result;
    use graph::{Code, TaskName};

    fn signature(size: usize) -> Result<CollectiveSignature> {
        let (reduction, dtype) = (Reduction::Sum, DType::Float);
        Ok(CollectiveSignature { participants: 3, reduction, dtype, shape: Shape::new(&[size])? })
    }

    fn participant(id: u32) -> Participant<u32> {
        let device = DeviceName::new(&TaskName::new("w", 0), "GPU", id);
        Participant { device, node: format!("sum_{id}").into(), input: id }
    }

    fn parts(participants: Vec<Participant<u32>>) -> Vec<u32> {
        participants.into_iter().map(|participant| participant.input).collect()
    }

    #[test]
    fn collective_completes_when_all_arrive_and_can_be_reused() -> Result<()> {
        let mut barrier = CollectiveBarrier::default();
        for order in [[2, 0, 1], [1, 2, 0]] {
            let [first, second, last] = order.map(participant);
            assert!(matches!(barrier.arrive(signature(4)?, first), Arrival::Waits));
            assert!(matches!(barrier.arrive(signature(4)?, second), Arrival::Waits));
            let Arrival::Complete(all) = barrier.arrive(signature(4)?, last) else { panic!("{barrier:?}") };
            assert_eq!(parts(all), [0, 1, 2]);
        }
        // The next round may have another shape.
        assert!(matches!(barrier.arrive(signature(5)?, participant(1)), Arrival::Waits));
        Ok(())
    }

    #[test]
    fn mismatched_signatures_fail_all_participants_and_later_ones() -> Result<()> {
        let mut barrier = CollectiveBarrier::default();
        assert!(matches!(barrier.arrive(signature(4)?, participant(0)), Arrival::Waits));
        let Arrival::Failed(error, all) = barrier.arrive(signature(5)?, participant(1)) else {
            panic!("{barrier:?}")
        };
        assert_eq!((parts(all), error.code()), (vec![0, 1], Code::InvalidArgument));
        assert_eq!(
            error.to_string(),
            "sum_1 and sum_0 are parts of one collective, and do not agree: Sum of float[5] on 3 devices against Sum of \
             float[4] on 3 devices"
        );
        let Arrival::Failed(error, all) = barrier.arrive(signature(4)?, participant(2)) else {
            panic!("{barrier:?}")
        };
        assert_eq!((parts(all), error.is_derived()), (vec![2], true));
        Ok(())
    }

    #[test]
    fn second_participant_of_one_device_is_an_error() -> Result<()> {
        let mut barrier = CollectiveBarrier::default();
        assert!(matches!(barrier.arrive(signature(4)?, participant(1)), Arrival::Waits));
        let Arrival::Failed(error, all) = barrier.arrive(signature(4)?, participant(1)) else {
            panic!("{barrier:?}")
        };
        assert_eq!(parts(all), [1, 1]);
        assert!(error.to_string().contains("it takes one part of each"), "{error}");
        Ok(())
    }

    #[test]
    fn cancelled_collective_returns_waiting_participants_once() -> Result<()> {
        let mut barrier = CollectiveBarrier::default();
        assert!(matches!(barrier.arrive(signature(4)?, participant(2)), Arrival::Waits));
        assert!(matches!(barrier.arrive(signature(4)?, participant(0)), Arrival::Waits));
        let cancelled = Error::new(Code::Cancelled, "enough");
        assert_eq!(parts(barrier.fail(cancelled.clone())), [2, 0]);
        assert_eq!(parts(barrier.fail(Error::internal("later"))), [0; 0]);
        let Arrival::Failed(error, all) = barrier.arrive(signature(4)?, participant(1)) else {
            panic!("{barrier:?}")
        };
        assert_eq!((parts(all), error), (vec![1], cancelled.derived()));
        Ok(())
    }
}
