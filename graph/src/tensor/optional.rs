//! Optional values, which are elements of variant tensors.

use super::object::{Nesting, VariantComponent};
use super::{Tensor, VariantObject};
use crate::error::{Error, Result};

/// A list of tensors, or no value. `T` is the Rust type of a tensor in host memory (the default) or in device memory.
#[derive(Clone, Debug)]
pub struct Optional<T = Tensor> {
    components: Option<Vec<T>>,
    nesting: Nesting,
}

impl<T: VariantComponent> Optional<T> {
    /// The optional without a value.
    pub const NONE: Optional<T> = Optional { components: None, nesting: Nesting::NONE };

    /// Returns an optional that holds the tensors.
    ///
    /// # Errors
    /// `ResourceExhausted` if variants are nested too deep or hold too many tensors.
    pub fn of(components: Vec<T>) -> Result<Optional<T>> {
        let nesting =
            components.iter().try_fold(Nesting::NONE, |nesting, component| nesting.with(component))?;
        Ok(Optional { components: Some(components), nesting })
    }

    /// Returns the tensors; `None` if there is no value.
    pub fn components(&self) -> Option<&[T]> {
        self.components.as_deref()
    }

    /// Returns the optional that holds the results of applying `with` to each tensor.
    ///
    /// # Errors
    /// The first error of `with`, and the errors of [`Optional::of`].
    pub fn map<U: VariantComponent, E: From<Error>>(
        &self,
        with: impl FnMut(&T) -> Result<U, E>,
    ) -> Result<Optional<U>, E> {
        match &self.components {
            Some(components) => Ok(Optional::of(components.iter().map(with).collect::<Result<_, E>>()?)?),
            None => Ok(Optional::NONE),
        }
    }
}

impl<T: VariantComponent> VariantObject for Optional<T> {
    fn type_name(&self) -> &'static str {
        "tensorflow::data::Optional"
    }

    fn nesting(&self) -> usize {
        self.nesting.depth + 1
    }

    fn tensors(&self) -> u64 {
        self.nesting.tensors.saturating_add(self.components().map_or(0, <[T]>::len) as u64)
    }
}
