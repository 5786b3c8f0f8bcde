//! Values that may not be there.

use super::object::{Component, nesting_with};
use super::{Tensor, VariantObject};
use crate::error::{Error, Result};

/// Some tensors, or nothing. They are in host memory, or whatever `T` is.
#[derive(Clone, Debug)]
pub struct Optional<T = Tensor> {
    components: Option<Vec<T>>,
    nesting: usize,
}

impl<T: Component> Optional<T> {
    pub const NONE: Optional<T> = Optional { components: None, nesting: 1 };

    /// # Errors
    /// `ResourceExhausted` if variants nest too deep.
    pub fn of(components: Vec<T>) -> Result<Optional<T>> {
        let mut nesting = 1;
        for component in &components {
            nesting = nesting.max(nesting_with(component)?);
        }
        Ok(Optional { components: Some(components), nesting })
    }

    pub fn components(&self) -> Option<&[T]> {
        self.components.as_deref()
    }

    /// What these become.
    ///
    /// # Errors
    /// The first of `with`, and as [`Optional::of`].
    pub fn map<U: Component, E: From<Error>>(
        &self,
        with: impl FnMut(&T) -> Result<U, E>,
    ) -> Result<Optional<U>, E> {
        match &self.components {
            Some(components) => Ok(Optional::of(components.iter().map(with).collect::<Result<_, E>>()?)?),
            None => Ok(Optional::NONE),
        }
    }
}

impl<T: Component> VariantObject for Optional<T> {
    fn type_name(&self) -> &'static str {
        "tensorflow::data::Optional"
    }

    fn nesting(&self) -> usize {
        self.nesting
    }
}
