//! Builders of ops that convert bytes to values.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// Returns the numbers that each string holds as raw bytes.
    pub fn decode_raw(&self, bytes: Output, dtype: DType) -> Output {
        self.op("DecodeRaw").input(bytes).attr("out_type", dtype).output()
    }

    /// Parses a serialized tensor.
    pub fn parse_tensor(&self, serialized: Output, dtype: DType) -> Output {
        self.op("ParseTensor").input(serialized).attr("out_type", dtype).output()
    }

    /// Serializes a tensor.
    pub fn serialize_tensor(&self, tensor: Output) -> Output {
        self.op("SerializeTensor").input(tensor).output()
    }
}
