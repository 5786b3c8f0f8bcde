//! Saved states of iterators, which are elements of variant tensors.

use super::VariantObject;
use bytes::Bytes;

/// The saved state of an iterator, in the format of the kernels that save and restore iterators.
#[derive(Clone, Debug, PartialEq)]
pub struct IteratorState(pub Bytes);

impl IteratorState {
    /// The name of the type on the wire and in checkpoints.
    pub const TYPE_NAME: &str = "tensorflow::Iterator";
}

impl VariantObject for IteratorState {
    fn type_name(&self) -> &'static str {
        IteratorState::TYPE_NAME
    }
}
