//! The limits of one run of a kernel: the memory that it may take, and the cancellation of its step. Elements of string
//! tensors may share their bytes, so the size of the inputs does not bound the size of the values that are read from them.

use checkpoint::proto::Malformed;
use device::cancel::Cancellation;
use device::{Error, Result};
use graph::Code;
use std::cell::Cell;

/// The number of steps between two checks of the cancellation.
const STEPS_PER_CHECK: usize = 4096;

/// The number of bytes that count as one step.
const BYTES_PER_STEP: usize = 4096;

/// The bytes that a kernel may still take, and the cancellation of its step.
pub(super) struct Budget<'a> {
    cancellation: &'a Cancellation,
    left: Cell<u64>,
    steps: Cell<usize>,
}

/// A reason why a message was not read.
#[derive(Debug)]
pub(super) enum Failure {
    /// The bytes are no message of the type.
    Malformed,
    /// The step is cancelled, or the message needs more memory than the limit.
    Stopped(Error),
}

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Failure {
        Failure::Malformed
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Stopped(error)
    }
}

impl<'a> Budget<'a> {
    /// Creates the budget of a run that may take `limit` bytes.
    pub(super) fn new(limit: u64, cancellation: &'a Cancellation) -> Budget<'a> {
        Budget { cancellation, left: Cell::new(limit), steps: Cell::new(0) }
    }

    /// Returns an error once the step is cancelled.
    pub(super) fn check_cancelled(&self) -> Result<()> {
        self.steps.set(0);
        self.cancellation.check()
    }

    /// Counts a step of a loop, such as a field; every few thousand steps the cancellation is checked.
    pub(super) fn step(&self) -> Result<()> {
        self.advance(1)
    }

    fn advance(&self, steps: usize) -> Result<()> {
        let steps = self.steps.get().saturating_add(steps);
        self.steps.set(steps);
        if steps >= STEPS_PER_CHECK { self.check_cancelled() } else { Ok(()) }
    }

    /// Takes bytes, which counts as at least one step.
    ///
    /// # Errors
    /// `ResourceExhausted` if fewer bytes are left; the reason of the cancellation once the step is cancelled.
    pub(super) fn take(&self, bytes: usize) -> Result<()> {
        let Some(left) = self.left.get().checked_sub(bytes as u64) else {
            return Err(Error::new(
                Code::ResourceExhausted,
                format!("OOM when allocating {bytes} bytes for messages; {} bytes are left", self.left.get()),
            ));
        };
        self.left.set(left);
        self.advance(1 + bytes / BYTES_PER_STEP)
    }

    /// Gives bytes back whose memory was freed.
    pub(super) fn give(&self, bytes: usize) {
        self.left.set(self.left.get().saturating_add(bytes as u64));
    }

    /// Calls a function, and gives back all bytes that it takes.
    pub(super) fn lend<T>(&self, call: impl FnOnce() -> T) -> T {
        let left = self.left.get();
        let made = call();
        self.left.set(left);
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_bytes_beyond_its_limit() {
        let cancellation = Cancellation::new();
        let budget = Budget::new(100, &cancellation);
        budget.lend(|| budget.take(100)).expect("100 bytes are left");
        budget.take(60).expect("100 bytes are left");
        assert_eq!(budget.take(41).expect_err("40 bytes are left").code(), Code::ResourceExhausted);
        budget.give(1);
        budget.take(41).expect("41 bytes are left");
    }

    #[test]
    fn a_cancelled_step_ends_a_long_loop() {
        let cancellation = Cancellation::new();
        let budget = Budget::new(100, &cancellation);
        cancellation.cancel(Error::new(Code::Cancelled, "the client left"));
        let steps = (0..2 * STEPS_PER_CHECK).take_while(|_| budget.step().is_ok()).count();
        assert_eq!(steps, STEPS_PER_CHECK - 1);
    }
}
