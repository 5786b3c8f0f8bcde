//! Builders of ops that reorder or repeat elements.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Permutes axes: axis `i` of the result is axis `perm[i]` of `x`.
    pub fn transpose(&self, x: Output, perm: &[usize]) -> Output {
        let perm: Vec<i32> = perm.iter().map(|&axis| axis.try_into().unwrap_or(i32::MAX)).collect();
        let perm = self.constant_vector(&perm);
        self.op("Transpose").input(x).input(perm).output()
    }

    /// Repeats axis `i` `multiples[i]` times.
    pub fn tile(&self, x: Output, multiples: &[i64]) -> Output {
        let multiples = self.constant_vector(multiples);
        self.op("Tile").input(x).input(multiples).output()
    }

    /// Reverses the elements along these axes.
    pub fn reverse(&self, x: Output, axes: &[i32]) -> Output {
        let axes = self.constant_vector(axes);
        self.op("ReverseV2").input(x).input(axes).output()
    }
}
