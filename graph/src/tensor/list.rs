//! Lists of tensors.

use super::object::{Component, Within};
use super::{Tensor, VariantObject};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::PartialShape;

/// A list of tensors of one type, of which some may have no value yet. They are in host memory, or whatever `T` is.
#[derive(Clone, Debug)]
pub struct TensorList<T = Tensor> {
    pub element_dtype: DType,
    /// What every element's shape agrees with.
    pub element_shape: PartialShape,
    /// The list grows no longer; -1 if it may.
    pub max_num_elements: i32,
    elements: Vec<Option<T>>,
    within: Within,
}

impl<T: Component> TensorList<T> {
    pub fn new(element_dtype: DType, element_shape: PartialShape) -> TensorList<T> {
        TensorList {
            element_dtype,
            element_shape,
            max_num_elements: -1,
            elements: Vec::new(),
            within: Within::NOTHING,
        }
    }

    /// A list of these elements.
    ///
    /// # Errors
    /// As [`TensorList::push`].
    pub fn of(
        element_dtype: DType,
        element_shape: PartialShape,
        elements: Vec<Option<T>>,
    ) -> Result<TensorList<T>> {
        let mut list = TensorList::new(element_dtype, element_shape);
        for element in elements.iter().flatten() {
            list.within = list.within.with(element)?;
        }
        list.elements = elements;
        Ok(list)
    }

    pub fn len(&self) -> usize {
        self.elements.len()
    }

    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    pub fn elements(&self) -> &[Option<T>] {
        &self.elements
    }

    /// The list of what these become.
    ///
    /// # Errors
    /// The first of `with`, and as [`TensorList::push`] and [`TensorList::resize`].
    pub fn map<U: Component, E: From<Error>>(
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

    /// # Errors
    /// `ResourceExhausted` if variants nest too deep, or hold too many tensors.
    pub fn push(&mut self, element: T) -> Result<()> {
        self.within = self.within.with(&element)?;
        self.elements.push(Some(element));
        Ok(())
    }

    pub fn pop(&mut self) -> Option<Option<T>> {
        let popped = self.elements.pop();
        if let Some(Some(element)) = &popped {
            self.within = self.within.without(element);
        }
        popped
    }

    /// Sets element `i`, which is there.
    ///
    /// # Errors
    /// As [`TensorList::push`]; `InvalidArgument` if there is no such element.
    pub fn set(&mut self, i: usize, element: T) -> Result<()> {
        let len = self.elements.len();
        let Some(slot) = self.elements.get_mut(i) else {
            crate::invalid!("there is no element {i} in a list of {len}");
        };
        let others = slot.as_ref().map_or(self.within, |before| self.within.without(before));
        self.within = others.with(&element)?;
        *slot = Some(element);
        Ok(())
    }

    /// Cuts the list, or adds elements without a value.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is not enough memory.
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
        self.within = cut.fold(self.within, |within, element| within.without(element));
        self.elements.resize(len, None);
        Ok(())
    }
}

impl<T: Component> VariantObject for TensorList<T> {
    fn type_name(&self) -> &'static str {
        "tensorflow::TensorList"
    }

    fn nesting(&self) -> usize {
        self.within.depth + 1
    }

    fn tensors(&self) -> u64 {
        self.within.tensors.saturating_add(self.elements.len() as u64)
    }
}
