//! Builders of conversions between element types.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// Converts the values to another type; returns `x` itself if it has that type.
    pub fn cast(&self, x: Output, dtype: DType) -> Output {
        if self.dtype(x) == dtype {
            return x;
        }
        self.op("Cast").input(x).attr("DstT", dtype).output()
    }

    /// Reinterprets the bits as another type.
    pub fn bitcast(&self, x: Output, dtype: DType) -> Output {
        self.op("Bitcast").input(x).attr("type", dtype).output()
    }
}
