//! A hook that runs ops when training has ended.

use crate::error::Result;
use crate::session::{Hook, HookContext};
use graph::{NodeId, Output, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// Fetches `fetches` and runs `targets` at the end of training, and stores the fetched tensors in `values`.
#[derive(Clone, Debug, Default)]
pub struct FinalOps {
    pub fetches: Vec<Output>,
    pub targets: Vec<NodeId>,
    pub values: Arc<Mutex<Vec<Tensor>>>,
}

impl Hook for FinalOps {
    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        *self.values.lock() = context.session.run(&[], &self.fetches, &self.targets)?;
        Ok(())
    }
}
