//! Lists of tensors, which are elements of variant tensors.

use super::object::{Nesting, VariantComponent};
use super::{Tensor, VariantObject};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::PartialShape;

/// A list of tensors of one element type, some of which may be unset. `T` is the Rust type of a tensor in host memory
/// (the default) or in device memory.
#[derive(Clone, Debug)]
pub struct TensorList<T = Tensor> {
    pub element_dtype: DType,
    /// A partial shape that all elements must fit.
    pub element_shape: PartialShape,
    /// The largest number of elements; -1 for no limit.
    pub max_num_elements: i32,
    elements: Vec<Option<T>>,
    nesting: Nesting,
}

impl<T: VariantComponent> TensorList<T> {
    /// Returns an empty list.
    pub fn new(element_dtype: DType, element_shape: PartialShape) -> TensorList<T> {
        TensorList {
            element_dtype,
            element_shape,
            max_num_elements: -1,
            elements: Vec::new(),
            nesting: Nesting::NONE,
        }
    }

    /// Returns a list of these elements.
    ///
    /// # Errors
    /// The errors of [`TensorList::push`].
    pub fn of(
        element_dtype: DType,
        element_shape: PartialShape,
        elements: Vec<Option<T>>,
    ) -> Result<TensorList<T>> {
        let mut list = TensorList::new(element_dtype, element_shape);
        for element in elements.iter().flatten() {
            list.nesting = list.nesting.with(element)?;
        }
        list.elements = elements;
        Ok(list)
    }

    /// Returns the number of elements, including unset ones.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Returns whether the list has no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Returns the elements; `None` for unset ones.
    pub fn elements(&self) -> &[Option<T>] {
        &self.elements
    }

    /// Returns the list of the results of applying `with` to each element.
    ///
    /// # Errors
    /// The first error of `with`, and the errors of [`TensorList::push`] and [`TensorList::resize`].
    pub fn map<U: VariantComponent, E: From<Error>>(
        &self,
        mut with: impl FnMut(&T) -> Result<U, E>,
    ) -> Result<TensorList<U>, E> {
        let mut list = TensorList::new(self.element_dtype, self.element_shape.clone());
        list.max_num_elements = self.max_num_elements;
        list.resize(self.len())?;
        for (i, element) in self.elements.iter().enumerate() {
            if let Some(element) = element {
                list.set(i, with(element)?)?;
            }
        }
        Ok(list)
    }

    /// Appends an element.
    ///
    /// # Errors
    /// `ResourceExhausted` if variants nest too deep, or hold too many tensors.
    pub fn push(&mut self, element: T) -> Result<()> {
        self.nesting = self.nesting.with(&element)?;
        self.elements.push(Some(element));
        Ok(())
    }

    /// Removes and returns the last element.
    pub fn pop(&mut self) -> Option<Option<T>> {
        let popped = self.elements.pop();
        if let Some(Some(element)) = &popped {
            self.nesting = self.nesting.without(element);
        }
        popped
    }

    /// Sets element `i`, which must exist.
    ///
    /// # Errors
    /// The errors of [`TensorList::push`]; `InvalidArgument` if the element does not exist.
    pub fn set(&mut self, i: usize, element: T) -> Result<()> {
        let len = self.elements.len();
        let Some(slot) = self.elements.get_mut(i) else {
            crate::invalid!("there is no element {i} in a list of {len}");
        };
        let others = slot.as_ref().map_or(self.nesting, |before| self.nesting.without(before));
        self.nesting = others.with(&element)?;
        *slot = Some(element);
        Ok(())
    }

    /// Shortens the list, or extends it by unset elements.
    ///
    /// # Errors
    /// `ResourceExhausted` if the memory is not sufficient.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let bytes = len as u128 * size_of::<Option<T>>() as u128;
        let more = len.saturating_sub(self.elements.len());
        if bytes > u128::from(super::memory_limit()) || self.elements.try_reserve(more).is_err() {
            return Err(Error::Invalid {
                code: Code::ResourceExhausted,
                message: format!("OOM when allocating a list of {len} tensors: {bytes} bytes"),
            });
        }
        let cut = self.elements.iter().skip(len).flatten();
        self.nesting = cut.fold(self.nesting, |nesting, element| nesting.without(element));
        self.elements.resize(len, None);
        Ok(())
    }
}

impl<T: VariantComponent> VariantObject for TensorList<T> {
    fn type_name(&self) -> &'static str {
        "tensorflow::TensorList"
    }

    fn nesting(&self) -> usize {
        self.nesting.depth + 1
    }

    fn tensors(&self) -> u64 {
        self.nesting.tensors.saturating_add(self.elements.len() as u64)
    }
}
