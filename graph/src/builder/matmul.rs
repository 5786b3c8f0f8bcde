//! Builders of matrix products.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the product of two matrices.
    pub fn matmul(&self, a: Output, b: Output) -> Output {
        self.op("MatMul").input(a).input(b).output()
    }

    /// Returns the product of two matrices, each optionally transposed.
    pub fn matmul_transposed(&self, a: Output, b: Output, transpose_a: bool, transpose_b: bool) -> Output {
        let call = self.op("MatMul").input(a).input(b);
        call.attr("transpose_a", transpose_a).attr("transpose_b", transpose_b).output()
    }

    /// Returns the products of the matrices in the last two axes; the other axes are broadcast.
    pub fn batch_matmul(&self, x: Output, y: Output) -> Output {
        self.op("BatchMatMulV2").input(x).input(y).output()
    }

    /// Like [`Scope::batch_matmul`], with each factor optionally replaced by its adjoint.
    pub fn batch_matmul_transposed(&self, x: Output, y: Output, adj_x: bool, adj_y: bool) -> Output {
        let call = self.op("BatchMatMulV2").input(x).input(y);
        call.attr("adj_x", adj_x).attr("adj_y", adj_y).output()
    }
}
