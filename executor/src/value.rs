//! What flows along edges inside a partition.

use crate::device::DeviceTensor;
use crate::variable::Variable;
use graph::Tensor;
use std::sync::Arc;

/// What an output holds.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// Nothing: not produced yet, or dead.
    #[default]
    None,
    /// A tensor in host memory.
    Host(Tensor),
    /// A tensor in a device's own memory.
    Device(DeviceTensor),
    /// A reference to a variable.
    Ref(Arc<Variable>),
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Host(tensor)
    }
}
