//! What flows along edges inside a partition.

use crate::device::{Device, DeviceTensor};
use crate::error::{Error, Result};
use crate::variable::Variable;
use graph::tensor::Component;
use graph::{DType, Shape, Tensor, Variant};
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
    /// A reference to a variable's elements in another shape.
    View(Arc<View>),
}

/// The elements of a variable in a shape that it had not when the view was taken.
#[derive(Debug)]
pub struct View {
    variable: Arc<Variable>,
    shape: Shape,
}

impl View {
    /// What the variable holds now, in the view's shape; `None` before the first assignment.
    ///
    /// # Errors
    /// `InvalidArgument` if it has got another number of elements since.
    pub fn snapshot(&self) -> Result<Option<Value>> {
        self.variable.snapshot().map(|value| value.reshaped(self.shape.clone())).transpose()
    }
}

impl Value {
    /// What is behind a reference now, `None` before the first assignment; any other value as it is.
    ///
    /// # Errors
    /// As [`View::snapshot`].
    pub fn dereferenced(self) -> Result<Option<Value>> {
        match self {
            Value::Ref(variable) => Ok(variable.snapshot()),
            Value::View(view) => view.snapshot(),
            value => Ok(Some(value)),
        }
    }

    /// Fills an empty place: nothing is called to drop what is not there, so that the value is made where it goes.
    #[inline]
    pub(crate) fn fill(place: &mut Value, value: Value) {
        debug_assert!(matches!(place, Value::None));
        std::mem::forget(std::mem::replace(place, value));
    }

    /// Drops what is here.
    #[inline]
    pub fn discard(&mut self) {
        match self {
            Value::None => {}
            Value::Host(tensor) if tensor.as_word().is_some() => std::mem::forget(std::mem::take(self)),
            _ => *self = Value::None,
        }
    }

    /// A copy of what is here, in an empty place. Scalars go by the word: what was just written so, as they are, cannot be
    /// read in larger pieces before it has reached the cache.
    #[inline]
    pub fn copy_to(&self, place: &mut Value) {
        match self.as_word() {
            Some(word) => Value::fill(place, word),
            None => Value::fill(place, self.clone()),
        }
    }

    /// What is here, to an empty place; by the word as in [`Value::copy_to`].
    #[inline]
    pub fn move_to(&mut self, place: &mut Value) {
        match self.as_word() {
            Some(word) => {
                Value::fill(place, word);
                self.discard();
            }
            None => Value::fill(place, std::mem::take(self)),
        }
    }

    #[inline]
    fn as_word(&self) -> Option<Value> {
        match self {
            Value::Host(tensor) => tensor.as_word().map(Value::Host),
            _ => None,
        }
    }

    /// The shape of a tensor, in whichever memory it is, or of the one behind a reference; `None` where there is none.
    pub fn shape(&self) -> Option<Shape> {
        match self {
            Value::None => None,
            Value::Host(tensor) => Some(tensor.shape().clone()),
            Value::Device(tensor) => Some(tensor.shape.clone()),
            Value::Ref(variable) => variable.snapshot()?.shape(),
            Value::View(view) => Some(view.shape.clone()),
        }
    }

    /// The same elements in another shape, without a copy: of a reference, a reference.
    ///
    /// # Errors
    /// `InvalidArgument` if it has another number of them; `Internal` of what is no tensor.
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

/// A tensor, in memory that its type says.
pub trait Item: Clone + Into<Value> {
    /// # Errors
    /// `Internal` if the value is no tensor of where they are.
    fn of(value: Value) -> Result<Self>;

    /// The tensor, if it is in host memory.
    fn on_host(&self) -> Option<&Tensor>;

    /// The tensor, if it is in a device's own memory.
    fn on_device(&self) -> Option<&DeviceTensor>;
}

/// A tensor as lists and optionals hold it: those of the host, and those of a device with memory of its own.
pub trait Held: Item + Component {
    fn dtype(&self) -> DType;

    fn shape(&self) -> &Shape;
}

/// A tensor, in either memory: of a kernel that passes it on.
#[derive(Clone, Debug)]
pub enum Placed {
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

impl Item for Placed {
    fn of(value: Value) -> Result<Placed> {
        match value {
            Value::Host(tensor) => Ok(Placed::Host(tensor)),
            Value::Device(tensor) => Ok(Placed::Device(tensor)),
            other => Err(Error::internal(format!("{other:?} is no tensor"))),
        }
    }

    fn on_host(&self) -> Option<&Tensor> {
        match self {
            Placed::Host(tensor) => Some(tensor),
            Placed::Device(_) => None,
        }
    }

    fn on_device(&self) -> Option<&DeviceTensor> {
        match self {
            Placed::Host(_) => None,
            Placed::Device(tensor) => Some(tensor),
        }
    }
}

impl Placed {
    /// What a kernel of the device keeps for steps to come of an input.
    ///
    /// # Errors
    /// `Internal` if it is no tensor, and those of [`Device::keep`].
    pub fn kept(input: Value, device: &Device) -> Result<Placed> {
        Ok(match Placed::of(input)? {
            Placed::Device(tensor) => Placed::Device(device.processor().persist(tensor)?),
            on_host => on_host,
        })
    }

    /// The tensor, where those of the host alone are worked with.
    ///
    /// # Errors
    /// `Internal` if it is in a device's own memory.
    pub fn tensor(&self) -> Result<&Tensor> {
        self.on_host().ok_or_else(|| Error::internal(format!("{self:?} is not in the host's memory")))
    }

    /// The memory that it takes.
    pub fn num_bytes(&self) -> usize {
        match self {
            Placed::Host(tensor) => tensor.num_bytes(),
            Placed::Device(tensor) => tensor.memory.len(),
        }
    }
}

impl From<Tensor> for Placed {
    fn from(tensor: Tensor) -> Placed {
        Placed::Host(tensor)
    }
}

impl From<Placed> for Value {
    fn from(tensor: Placed) -> Value {
        match tensor {
            Placed::Host(tensor) => Value::Host(tensor),
            Placed::Device(tensor) => Value::Device(tensor),
        }
    }
}

impl Component for Placed {
    fn variants(&self) -> Option<&[Variant]> {
        self.on_host().and_then(Component::variants)
    }
}

impl Held for Tensor {
    fn dtype(&self) -> DType {
        Tensor::dtype(self)
    }

    fn shape(&self) -> &Shape {
        Tensor::shape(self)
    }
}

impl Held for Placed {
    fn dtype(&self) -> DType {
        match self {
            Placed::Host(tensor) => tensor.dtype(),
            Placed::Device(tensor) => tensor.dtype,
        }
    }

    fn shape(&self) -> &Shape {
        match self {
            Placed::Host(tensor) => tensor.shape(),
            Placed::Device(tensor) => &tensor.shape,
        }
    }
}
