//! What flows along edges inside a partition.

use crate::device::DeviceTensor;
use crate::error::{Error, Result};
use crate::variable::Variable;
use graph::{Shape, Tensor};
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

impl Value {
    /// The same elements in another shape, without a copy.
    ///
    /// # Errors
    /// `InvalidArgument` if it has another number of them; `Internal` of what is no tensor.
    pub(crate) fn reshaped(self, shape: Shape) -> Result<Value> {
        match self {
            Value::Host(tensor) => Ok(tensor.reshaped(shape)?.into()),
            Value::Device(tensor) if tensor.shape.num_elements() == shape.num_elements() => {
                Ok(DeviceTensor { shape, ..tensor }.into())
            }
            other => Err(Error::internal(format!("{other:?} does not take shape {shape}"))),
        }
    }
}

impl From<DeviceTensor> for Value {
    fn from(tensor: DeviceTensor) -> Value {
        Value::Device(tensor)
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Host(tensor)
    }
}
