//! Variants that hold tensors: lists, and values that may not be there.

use super::{Tensor, Variant, VariantObject};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::shape::PartialShape;

/// Variants within variants go no deeper: each level is one of the stack when the outermost is dropped.
pub const MAX_NESTING: usize = 64;

/// A list of tensors of one type, of which some may have no value yet.
#[derive(Clone, Debug)]
pub struct TensorList {
    pub element_dtype: DType,
    /// What every element's shape agrees with.
    pub element_shape: PartialShape,
    /// The list grows no longer; -1 if it may.
    pub max_num_elements: i32,
    elements: Vec<Option<Tensor>>,
    nesting: usize,
}

impl TensorList {
    pub fn new(element_dtype: DType, element_shape: PartialShape) -> TensorList {
        TensorList { element_dtype, element_shape, max_num_elements: -1, elements: Vec::new(), nesting: 1 }
    }

    /// A list of these elements.
    ///
    /// # Errors
    /// As [`TensorList::push`].
    pub fn of(
        element_dtype: DType,
        element_shape: PartialShape,
        elements: Vec<Option<Tensor>>,
    ) -> Result<TensorList> {
        let mut list = TensorList::new(element_dtype, element_shape);
        for element in elements.iter().flatten() {
            list.nesting = list.nesting.max(nesting_with(element)?);
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

    pub fn elements(&self) -> &[Option<Tensor>] {
        &self.elements
    }

    /// # Errors
    /// `ResourceExhausted` if variants nest too deep.
    pub fn push(&mut self, element: Tensor) -> Result<()> {
        self.nesting = self.nesting.max(nesting_with(&element)?);
        self.elements.push(Some(element));
        Ok(())
    }

    pub fn pop(&mut self) -> Option<Option<Tensor>> {
        self.elements.pop()
    }

    /// Sets element `i`, which is there.
    ///
    /// # Errors
    /// As [`TensorList::push`]; `InvalidArgument` if there is no such element.
    pub fn set(&mut self, i: usize, element: Tensor) -> Result<()> {
        self.nesting = self.nesting.max(nesting_with(&element)?);
        match self.elements.get_mut(i) {
            Some(slot) => *slot = Some(element),
            None => crate::invalid!("there is no element {i} in a list of {}", self.elements.len()),
        }
        Ok(())
    }

    /// Cuts the list, or adds elements without a value.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is not enough memory.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let bytes = len as u128 * size_of::<Option<Tensor>>() as u128;
        let more = len.saturating_sub(self.elements.len());
        if bytes > u128::from(super::memory_limit()) || self.elements.try_reserve(more).is_err() {
            return Err(Error::Invalid {
                code: Code::ResourceExhausted,
                message: format!("OOM when allocating a list of {len} tensors: {bytes} bytes"),
            });
        }
        self.elements.resize(len, None);
        Ok(())
    }
}

impl VariantObject for TensorList {
    fn type_name(&self) -> &'static str {
        "tensorflow::TensorList"
    }

    fn nesting(&self) -> usize {
        self.nesting
    }
}

/// Some tensors, or nothing.
#[derive(Clone, Debug)]
pub struct Optional {
    components: Option<Vec<Tensor>>,
    nesting: usize,
}

impl Optional {
    pub const NONE: Optional = Optional { components: None, nesting: 1 };

    /// # Errors
    /// `ResourceExhausted` if variants nest too deep.
    pub fn of(components: Vec<Tensor>) -> Result<Optional> {
        let mut nesting = 1;
        for component in &components {
            nesting = nesting.max(nesting_with(component)?);
        }
        Ok(Optional { components: Some(components), nesting })
    }

    pub fn components(&self) -> Option<&[Tensor]> {
        self.components.as_deref()
    }
}

impl VariantObject for Optional {
    fn type_name(&self) -> &'static str {
        "tensorflow::data::Optional"
    }

    fn nesting(&self) -> usize {
        self.nesting
    }
}

/// How deep what holds the tensor nests.
fn nesting_with(tensor: &Tensor) -> Result<usize> {
    let Ok(variants) = tensor.as_variants() else { return Ok(1) };
    let deepest = variants.iter().filter_map(Variant::object).map(|o| o.nesting()).max().unwrap_or(0);
    if deepest >= MAX_NESTING {
        return Err(Error::Invalid {
            code: Code::ResourceExhausted,
            message: format!("variants are nested deeper than {MAX_NESTING}"),
        });
    }
    Ok(deepest + 1)
}
