//! The state of a tensor array: its elements, their shapes, and whether each element has been written and read.

use device::resource::Resource;
use device::value::Value;
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Shape};
use parking_lot::Mutex;
use std::fmt;

/// An array of tensors of one dtype, all in the same memory space.
pub(crate) struct TensorArray {
    pub(super) name: String,
    pub(super) dtype: DType,
    clear_after_read: bool,
    identical_shapes: bool,
    /// True for an array of gradients, in which a second write to an element is added to the first.
    sums: bool,
    state: Mutex<TensorArrayState>,
}

struct TensorArrayState {
    elements: Vec<ArrayElement>,
    is_closed: bool,
    is_dynamic: bool,
    /// The shape that every element must match.
    shape: PartialShape,
}

#[derive(Clone, Default)]
struct ArrayElement {
    tensor: Option<Value>,
    /// The shape of the written tensor. If there is a shape but no tensor, the element's value is zeros of this shape,
    /// which are created when the element is read.
    shape: Option<Shape>,
    is_read: bool,
    is_cleared: bool,
}

/// The settings of a new tensor array.
pub(super) struct TensorArrayConfig {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: PartialShape,
    pub(super) size: usize,
    pub(super) is_dynamic: bool,
    pub(super) clear_after_read: bool,
    pub(super) identical_shapes: bool,
}

impl Resource for TensorArray {
    const KIND: &'static str = "TensorArray";
}

impl fmt::Debug for TensorArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorArray({})", self.name)
    }
}

impl TensorArray {
    pub(super) fn new(config: TensorArrayConfig) -> Result<TensorArray> {
        let TensorArrayConfig { name, dtype, shape, size, is_dynamic, clear_after_read, identical_shapes } =
            config;
        let mut elements = Vec::new();
        grow(&mut elements, size)?;
        let state = TensorArrayState { elements, is_closed: false, is_dynamic, shape };
        Ok(TensorArray {
            name,
            dtype,
            clear_after_read,
            identical_shapes,
            sums: false,
            state: Mutex::new(state),
        })
    }

    /// Returns a new array for the gradients of this array, with the same length; this array can then no longer grow.
    /// For each element written in this array, the new array has zeros of the element's shape with `prefix` before it.
    pub(super) fn gradient(&self, name: String, prefix: Option<&[usize]>) -> Result<TensorArray> {
        let mut forward = self.open()?;
        forward.is_dynamic = false;
        let prefix = prefix.unwrap_or_default();
        let mut elements = Vec::new();
        grow(&mut elements, forward.elements.len())?;
        for (element, of) in elements.iter_mut().zip(&forward.elements) {
            let shape = of.shape.as_ref().map(|shape| Shape::new(&[prefix, shape.dims()].concat()));
            element.shape = shape.transpose()?;
        }
        let shape = match forward.shape.dims() {
            Some(dims) => PartialShape::of_dims(prefix.iter().map(|&d| Some(d)).chain(dims.iter().copied())),
            None => PartialShape::unknown(),
        };
        let state = TensorArrayState { elements, is_closed: false, is_dynamic: false, shape };
        Ok(TensorArray {
            name,
            dtype: self.dtype,
            clear_after_read: false,
            identical_shapes: self.identical_shapes,
            sums: true,
            state: Mutex::new(state),
        })
    }

    fn open(&self) -> Result<parking_lot::MutexGuard<'_, TensorArrayState>> {
        let state = self.state.lock();
        if state.is_closed {
            device::invalid!("TensorArray {} has already been closed.", self.name);
        }
        Ok(state)
    }

    pub(super) fn len(&self) -> Result<usize> {
        Ok(self.open()?.elements.len())
    }

    /// Extends the array to `size` elements; does nothing if it is longer or has a fixed length.
    pub(super) fn grow_to(&self, size: usize) -> Result<()> {
        let mut state = self.open()?;
        if state.is_dynamic && size > state.elements.len() { grow(&mut state.elements, size) } else { Ok(()) }
    }

    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let elements = std::mem::take(&mut state.elements);
        drop(state);
        drop(elements);
    }

    /// Writes an element. In an array of gradients, `add` adds the value to an element that was written before.
    pub(super) fn write(
        &self,
        index: i32,
        value: Value,
        add: impl FnOnce(&mut Value, &Value) -> Result<()>,
    ) -> Result<()> {
        let name = &self.name;
        let mut state = self.open()?;
        let TensorArrayState { elements, is_dynamic, shape: of_all, .. } = &mut *state;
        let place = usize::try_from(index).ok();
        match place {
            Some(place) if *is_dynamic && place >= elements.len() => grow(elements, place + 1)?,
            _ => {}
        }
        let size = elements.len();
        let Some(element) = place.and_then(|place| elements.get_mut(place)) else {
            device::invalid!(
                "TensorArray {name}: Tried to write to index {index} but array is not resizeable and size is: \
                 {size}"
            );
        };
        let shape = value.shape().ok_or_else(|| Error::internal(format!("{value:?} is no element")))?;
        if element.shape.is_none() && !of_all.accepts(&shape) {
            device::invalid!(
                "TensorArray {name}: Could not write to TensorArray index {index} because the value shape is \
                 {shape} which is incompatible with the TensorArray's inferred element shape: {of_all} (consider \
                 setting infer_shape=False)."
            );
        }
        let refused = |why: &str| {
            let text = "Could not write to TensorArray index";
            Err(Error::invalid(format!(
                "TensorArray {name}: {text} {index} because it has already been {why}."
            )))
        };
        if element.is_read {
            return refused("read");
        }
        match &element.shape {
            Some(_) if !self.sums => return refused("written to"),
            Some(existing) if *existing != shape => device::invalid!(
                "TensorArray {name}: Could not aggregate to TensorArray index {index} because the existing shape \
                 is {existing} but the new input shape is {shape}."
            ),
            _ => {}
        }
        if self.identical_shapes && !of_all.is_fully_defined() {
            *of_all = (&shape).into();
        }
        match &mut element.tensor {
            Some(sum) => add(sum, &value),
            tensor => {
                element.shape = Some(shape);
                *tensor = Some(value);
                Ok(())
            }
        }
    }

    /// Returns an element; `zeros` creates the value of an element that was never written.
    pub(super) fn read(&self, index: i32, zeros: impl FnOnce(Shape) -> Result<Value>) -> Result<Value> {
        let name = &self.name;
        let mut state = self.open()?;
        let TensorArrayState { elements, shape: of_all, .. } = &mut *state;
        let size = elements.len();
        let place = usize::try_from(index).ok();
        let Some(element) = place.and_then(|place| elements.get_mut(place)) else {
            device::invalid!("Tried to read from index {index} but array size is: {size}");
        };
        if element.is_cleared {
            device::invalid!(
                "TensorArray {name}: Could not read index {index} twice because it was cleared after a previous \
                 read (perhaps try setting clear_after_read = false?)."
            );
        }
        let value = match element.tensor.take() {
            Some(value) => value,
            None => {
                let Some(shape) = element.shape.clone().or_else(|| of_all.as_shape()) else {
                    device::invalid!(
                        "TensorArray {name}: Could not read from TensorArray index {index}.  Furthermore, the \
                         element shape is not fully defined: {of_all}.  It is possible you are working with a \
                         resizeable TensorArray and stop_gradients is not allowing the gradients to be written.  If \
                         you set the full element_shape property on the forward TensorArray, the proper all-zeros \
                         tensor will be returned instead of incurring this error."
                    );
                };
                let value = zeros(shape.clone())?;
                element.shape = Some(shape);
                value
            }
        };
        element.is_read = true;
        if self.clear_after_read {
            element.is_cleared = true;
        } else {
            element.tensor = Some(value.clone());
        }
        Ok(value)
    }
}

/// Extends `elements` to length `size` with unwritten elements.
fn grow(elements: &mut Vec<ArrayElement>, size: usize) -> Result<()> {
    let bytes = size as u128 * size_of::<ArrayElement>() as u128;
    let refused = || {
        let text = format!("OOM when a TensorArray grows to {size} elements: {bytes} bytes");
        Error::new(Code::ResourceExhausted, text)
    };
    if bytes > u128::from(graph::tensor::memory_limit()) {
        return Err(refused());
    }
    elements.try_reserve(size.saturating_sub(elements.len())).map_err(|_| refused())?;
    elements.resize(size, ArrayElement::default());
    Ok(())
}
