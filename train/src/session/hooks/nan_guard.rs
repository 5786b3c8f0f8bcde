//! A hook that ends training when the loss is infinite or not a number.

use crate::error::{Error, Result};
use crate::session::{Hook, HookContext, RunArgs, RunValues};
use graph::{DType, Output};

/// Checks the loss after each step. A loss that is infinite or not a number is an error if `fails`, and ends
/// training without an error otherwise.
#[derive(Clone, Copy, Debug)]
pub struct NanGuard {
    /// The loss, a scalar `float` or `double`.
    pub loss: Output,
    /// True if a loss that is infinite or not a number is an error.
    pub fails: bool,
}

impl Hook for NanGuard {
    fn before_run(&mut self, _: &HookContext<'_>) -> Result<RunArgs> {
        Ok(RunArgs { fetches: vec![self.loss], ..RunArgs::default() })
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let Some(loss) = run.values.first() else { return Ok(()) };
        let loss =
            if loss.dtype() == DType::Double { loss.item::<f64>()? } else { f64::from(loss.item::<f32>()?) };
        if loss.is_finite() {
            return Ok(());
        }
        let error = Error::NotANumber { step: run.global_step.unwrap_or_default(), loss };
        if self.fails {
            return Err(error);
        }
        tracing::warn!("training ends: {error}");
        context.coordinator.request_stop();
        Ok(())
    }
}
