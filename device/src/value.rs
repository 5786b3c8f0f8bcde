//! The values that flow along the edges of a partition.

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::variable::Variable;
use graph::tensor::VariantComponent;
use graph::{DType, Shape, Tensor, Variant};
use std::sync::Arc;

/// The value of a node's output.
#[derive(Clone, Debug, Default)]
pub enum Value {
    /// No value: the output has not been produced yet, or is dead.
    #[default]
    None,
    /// A tensor in host memory.
    Host(Tensor),
    /// A tensor in a device's own memory.
    Device(DeviceTensor),
    /// A reference to a variable.
    Ref(Arc<Variable>),
    /// A reference to a variable's elements in another shape.
    View(Arc<View>),
}

/// A reference to a variable's elements in a shape that differs from the variable's own.
#[derive(Debug)]
pub struct View {
    variable: Arc<Variable>,
    shape: Shape,
}

impl View {
    /// Returns the variable's current value in the view's shape; `None` before the first assignment.
    ///
    /// # Errors
    /// `InvalidArgument` if the variable's number of elements has changed since the view was created.
    pub fn snapshot(&self) -> Result<Option<Value>> {
        self.variable.snapshot().map(|value| value.reshaped(self.shape.clone())).transpose()
    }
}

impl Value {
    /// Returns the current value behind a reference, `None` before the first assignment. Other values are returned
    /// unchanged.
    ///
    /// # Errors
    /// Those of [`View::snapshot`].
    pub fn dereferenced(self) -> Result<Option<Value>> {
        match self {
            Value::Ref(variable) => Ok(variable.snapshot()),
            Value::View(view) => view.snapshot(),
            value => Ok(Some(value)),
        }
    }

    /// Stores a value in `place`, which must be `None`. Skips the drop of the old value, so that the compiler
    /// constructs the new value in place.
    #[inline]
    pub(crate) fn fill(place: &mut Value, value: Value) {
        debug_assert!(matches!(place, Value::None));
        std::mem::forget(std::mem::replace(place, value));
    }

    /// Drops the value and leaves `None`.
    #[inline]
    pub fn discard(&mut self) {
        match self {
            Value::None => {}
            Value::Host(tensor) if tensor.inline_scalar().is_some() => std::mem::forget(std::mem::take(self)),
            _ => *self = Value::None,
        }
    }

    /// Stores a copy of the value in `place`, which must be `None`. Scalars are copied as 64-bit words: a wider load of
    /// words that were just stored would stall until the stores have reached the cache.
    #[inline]
    pub fn copy_to(&self, place: &mut Value) {
        match self.as_scalar_word() {
            Some(word) => Value::fill(place, word),
            None => Value::fill(place, self.clone()),
        }
    }

    /// Moves the value to `place`, which must be `None`. Scalars are moved as 64-bit words, like in [`Value::copy_to`].
    #[inline]
    pub fn move_to(&mut self, place: &mut Value) {
        match self.as_scalar_word() {
            Some(word) => {
                Value::fill(place, word);
                self.discard();
            }
            None => Value::fill(place, std::mem::take(self)),
        }
    }

    #[inline]
    fn as_scalar_word(&self) -> Option<Value> {
        match self {
            Value::Host(tensor) => tensor.inline_scalar().map(Value::Host),
            _ => None,
        }
    }

    /// Returns the shape of a tensor in either memory, or of the tensor behind a reference; `None` if there is no
    /// tensor.
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Value::None => None,
            Value::Host(tensor) => Some(tensor.shape().clone()),
            Value::Device(tensor) => Some(tensor.shape.clone()),
            Value::Ref(variable) => variable.snapshot()?.shape(),
            Value::View(view) => Some(view.shape.clone()),
        }
    }

    /// Returns the same elements in another shape, without a copy; a reference becomes a [view](View).
    ///
    /// # Errors
    /// `InvalidArgument` if the shape has another number of elements; `Internal` if the value is not a tensor.
    pub fn reshaped(self, shape: Shape) -> Result<Value> {
        match self {
            Value::Host(tensor) => Ok(tensor.reshaped(shape)?.into()),
            Value::Device(tensor) if tensor.shape.num_elements() == shape.num_elements() => {
                Ok(DeviceTensor { shape, ..tensor }.into())
            }
            Value::Ref(variable) => Ok(Value::View(Arc::new(View { variable, shape }))),
            Value::View(view) => Ok(Value::View(Arc::new(View { variable: view.variable.clone(), shape }))),
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

/// A Rust type of values: [`Value`] itself, [`Tensor`] for tensors in host memory, or [`AnyTensor`] for tensors in
/// either memory.
pub trait Item: Clone + Into<Value> {
    /// Converts a value.
    ///
    /// # Errors
    /// `Internal` if the value is not a tensor in a memory that this type allows.
    fn of(value: Value) -> Result<Self>;

    /// Returns the tensor if it is in host memory.
    fn on_host(&self) -> Option<&Tensor>;

    /// Returns the tensor if it is in a device's own memory.
    fn on_device(&self) -> Option<&DeviceTensor>;
}

/// An element of tensor lists and optionals: [`Tensor`] if they were made by the CPU, [`AnyTensor`] if they were made
/// by a device with its own memory.
pub trait ListElement: Item + VariantComponent {
    /// Returns the tensor's dtype.
    fn dtype(&self) -> DType;

    /// Returns the tensor's shape.
    fn shape(&self) -> &Shape;
}

/// A tensor in host or device memory, for kernels that pass it on.
#[derive(Clone, Debug)]
pub enum AnyTensor {
    Host(Tensor),
    Device(DeviceTensor),
}

impl Item for Value {
    fn of(value: Value) -> Result<Value> {
        Ok(value)
    }

    fn on_host(&self) -> Option<&Tensor> {
        match self {
            Value::Host(tensor) => Some(tensor),
            _ => None,
        }
    }

    fn on_device(&self) -> Option<&DeviceTensor> {
        match self {
            Value::Device(tensor) => Some(tensor),
            _ => None,
        }
    }
}

impl Item for Tensor {
    fn of(value: Value) -> Result<Tensor> {
        match value {
            Value::Host(tensor) => Ok(tensor),
            other => Err(Error::internal(format!("{other:?} is no tensor of the host"))),
        }
    }

    fn on_host(&self) -> Option<&Tensor> {
        Some(self)
    }

    fn on_device(&self) -> Option<&DeviceTensor> {
        None
    }
}

impl Item for AnyTensor {
    fn of(value: Value) -> Result<AnyTensor> {
        match value {
            Value::Host(tensor) => Ok(AnyTensor::Host(tensor)),
            Value::Device(tensor) => Ok(AnyTensor::Device(tensor)),
            other => Err(Error::internal(format!("{other:?} is no tensor"))),
        }
    }

    fn on_host(&self) -> Option<&Tensor> {
        match self {
            AnyTensor::Host(tensor) => Some(tensor),
            AnyTensor::Device(_) => None,
        }
    }

    fn on_device(&self) -> Option<&DeviceTensor> {
        match self {
            AnyTensor::Host(_) => None,
            AnyTensor::Device(tensor) => Some(tensor),
        }
    }
}

impl AnyTensor {
    /// Converts an input to a tensor that a kernel of the device may keep for later steps.
    ///
    /// # Errors
    /// `Internal` if the input is not a tensor; errors of [`Processor::persist`](crate::Processor::persist).
    pub fn persisted(input: Value, device: &Device) -> Result<AnyTensor> {
        Ok(match AnyTensor::of(input)? {
            AnyTensor::Device(tensor) => AnyTensor::Device(device.processor().persist(tensor)?),
            on_host => on_host,
        })
    }

    /// Returns the tensor, for callers that support host memory only.
    ///
    /// # Errors
    /// `Internal` if the tensor is in a device's own memory.
    pub fn tensor(&self) -> Result<&Tensor> {
        self.on_host().ok_or_else(|| Error::internal(format!("{self:?} is not in the host's memory")))
    }

    /// Returns the bytes of memory that the tensor takes.
    pub fn num_bytes(&self) -> usize {
        match self {
            AnyTensor::Host(tensor) => tensor.num_bytes(),
            AnyTensor::Device(tensor) => tensor.memory.len(),
        }
    }
}

impl From<Tensor> for AnyTensor {
    fn from(tensor: Tensor) -> AnyTensor {
        AnyTensor::Host(tensor)
    }
}

impl From<AnyTensor> for Value {
    fn from(tensor: AnyTensor) -> Value {
        match tensor {
            AnyTensor::Host(tensor) => Value::Host(tensor),
            AnyTensor::Device(tensor) => Value::Device(tensor),
        }
    }
}

impl VariantComponent for AnyTensor {
    fn variants(&self) -> Option<&[Variant]> {
        self.on_host().and_then(VariantComponent::variants)
    }
}

impl ListElement for Tensor {
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }

    fn shape(&self) -> &Shape {
        Tensor::shape(self)
    }
}

impl ListElement for AnyTensor {
    fn dtype(&self) -> DType {
        match self {
            AnyTensor::Host(tensor) => tensor.dtype(),
            AnyTensor::Device(tensor) => tensor.dtype,
        }
    }

    fn shape(&self) -> &Shape {
        match self {
            AnyTensor::Host(tensor) => tensor.shape(),
            AnyTensor::Device(tensor) => &tensor.shape,
        }
    }
}
