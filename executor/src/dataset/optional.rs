//! Optional values: an element, or none.

use super::Element;
use crate::error::{Error, Result};
use graph::{Tensor, VariantObject};
use std::sync::Arc;

/// An element or none, as an element of a `variant` tensor.
#[derive(Clone, Debug)]
pub(crate) struct OptionalVariant(pub Option<Element>);

impl VariantObject for OptionalVariant {
    fn type_name(&self) -> &'static str {
        "tensorflow::data::Optional"
    }
}

impl OptionalVariant {
    /// The optional value in a scalar tensor.
    pub(crate) fn of(tensor: &Tensor) -> Result<Arc<OptionalVariant>> {
        match tensor.as_variants()? {
            [variant] if tensor.shape().rank() == 0 => {
                Ok(variant.expect::<OptionalVariant>("an optional value")?)
            }
            _ => Err(Error::invalid("Input to an optional op must be a scalar variant tensor.")),
        }
    }
}
