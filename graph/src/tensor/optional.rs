//! Values that may not be there.

use super::object::{Component, Within};
use super::{Tensor, VariantObject};
use crate::error::{Error, Result};

/// Some tensors, or nothing. They are in host memory, or whatever `T` is.
#[derive(Clone, Debug)]
pub struct Optional<T = Tensor> {
    components: Option<Vec<T>>,
    within: Within,
}

impl<T: Component> Optional<T> {
    pub const NONE: Optional<T> = Optional { components: None, within: Within::NOTHING };

    /// # Errors
    /// `ResourceExhausted` if variants nest too deep, or hold too many tensors.
    pub fn of(components: Vec<T>) -> Result<Optional<T>> {
        let within =
            components.iter().try_fold(Within::NOTHING, |within, component| within.with(component))?;
        Ok(Optional { components: Some(components), within })
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
        self.within.depth + 1
    }

    fn tensors(&self) -> u64 {
        self.within.tensors.saturating_add(self.components().map_or(0, <[T]>::len) as u64)
    }
}
