//! Builders of conversions between element types.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;

impl Scope {
    /// The values in another type; `x` itself where it is of that type.
    pub fn cast(&self, x: Output, dtype: DType) -> Output {
        if self.dtype(x) == dtype {
            return x;
        }
        self.op("Cast").input(x).attr("DstT", dtype).output()
    }

    /// The bits read as another type.
    pub fn bitcast(&self, x: Output, dtype: DType) -> Output {
        self.op("Bitcast").input(x).attr("type", dtype).output()
    }
}
