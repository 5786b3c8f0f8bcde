//! Builders of ops that make values from bytes.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// The numbers that each string holds as plain bytes.
    pub fn decode_raw(&self, bytes: Output, dtype: DType) -> Output {
        self.op("DecodeRaw").input(bytes).attr("out_type", dtype).output()
    }

    /// The tensor of a message.
    pub fn parse_tensor(&self, serialized: Output, dtype: DType) -> Output {
        self.op("ParseTensor").input(serialized).attr("out_type", dtype).output()
    }

    /// A tensor as a message.
    pub fn serialize_tensor(&self, tensor: Output) -> Output {
        self.op("SerializeTensor").input(tensor).output()
    }
}
