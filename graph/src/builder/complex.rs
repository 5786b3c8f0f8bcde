//! Builders of complex numbers and their parts.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;
use crate::ops::complex::part_type;

impl Scope {
    /// Returns `real + i * imag`, with broadcasting.
    pub fn complex(&self, real: Output, imag: Output) -> Output {
        let dtype = if self.dtype(real) == DType::Double { DType::Complex128 } else { DType::Complex64 };
        self.op("Complex").input(real).input(imag).attr("Tout", dtype).output()
    }

    /// Returns the real part.
    pub fn real(&self, x: Output) -> Output {
        self.part("Real", x)
    }

    /// Returns the imaginary part.
    pub fn imag(&self, x: Output) -> Output {
        self.part("Imag", x)
    }

    /// Returns the angle to the positive real axis, in radians in (-pi, pi].
    pub fn angle(&self, x: Output) -> Output {
        self.part("Angle", x)
    }

    /// Returns the absolute value.
    pub fn complex_abs(&self, x: Output) -> Output {
        self.part("ComplexAbs", x)
    }

    /// Returns the complex conjugate; a tensor of another type is returned unchanged.
    pub fn conj(&self, x: Output) -> Output {
        if self.dtype(x).is_complex() { self.op("Conj").input(x).output() } else { x }
    }

    fn part(&self, op: &str, x: Output) -> Output {
        self.op(op).input(x).attr("Tout", part_type(self.dtype(x))).output()
    }
}
