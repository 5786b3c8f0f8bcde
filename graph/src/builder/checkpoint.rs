//! Builders of ops that save and restore variables.

use super::Scope;
use crate::dtype::DType;
use crate::graph::{NodeId, Output};
use crate::tensor::Tensor;
use bytes::Bytes;

impl Scope {
    /// Writes the tensors, each under the name paired with it, to a checkpoint whose file names begin with `prefix`.
    pub fn save(&self, prefix: Output, tensors: &[(&str, Output)]) -> NodeId {
        let names: Vec<&str> = tensors.iter().map(|(name, _)| *name).collect();
        let all: Vec<Output> = tensors.iter().map(|(_, tensor)| *tensor).collect();
        let whole = vec![""; names.len()];
        self.op("SaveV2").input(prefix).input(self.names(&names)).input(self.names(&whole)).input(all).node()
    }

    /// Returns the tensors with these names and types, read from the checkpoint with this prefix.
    pub fn restore(&self, prefix: Output, tensors: &[(&str, DType)]) -> Vec<Output> {
        let names: Vec<&str> = tensors.iter().map(|(name, _)| *name).collect();
        let types: Vec<DType> = tensors.iter().map(|(_, dtype)| *dtype).collect();
        let whole = vec![""; names.len()];
        let call = self.op("RestoreV2").input(prefix).input(self.names(&names)).input(self.names(&whole));
        call.attr("dtypes", types).outputs()
    }

    /// Merges checkpoints that different tasks have written into one.
    pub fn merge_checkpoints(&self, prefixes: Output, destination: Output) -> NodeId {
        self.op("MergeV2Checkpoints").input(prefixes).input(destination).node()
    }

    fn names(&self, names: &[&str]) -> Output {
        let strings = names.iter().map(|name| Bytes::copy_from_slice(name.as_bytes())).collect();
        let shape = crate::shape::Shape::new(&[names.len()]);
        match shape.and_then(|shape| Tensor::strings(strings, shape)) {
            Ok(tensor) => self.constant(tensor),
            Err(error) => {
                self.fail(error);
                self.constant("")
            }
        }
    }
}
