//! Matrices of real or complex numbers in double precision.

use crate::numeric::scalar::Arithmetic;
use crate::numeric::widen::Lane as _;
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use half::{bf16, f16};
use num_complex::Complex;

/// A real or complex entry of a matrix.
pub(crate) trait Entry: Arithmetic {
    /// Converts from a complex number; a real entry takes the real part.
    fn from_complex(value: Complex<f64>) -> Self;
    /// Converts to a complex number.
    fn to_complex(self) -> Complex<f64>;
    /// Converts from a real number.
    fn from_real(value: f64) -> Self {
        Self::from_complex(Complex::new(value, 0.0))
    }
    /// Returns the absolute value of the entry.
    fn modulus(self) -> f64 {
        self.to_complex().norm()
    }
    /// Returns the real part of the entry.
    fn real(self) -> f64 {
        self.to_complex().re
    }
    /// Returns the entry divided by its absolute value.
    fn sign(self) -> Self {
        Self::from_complex(self.to_complex() / self.modulus())
    }
}

impl Entry for f64 {
    fn from_complex(value: Complex<f64>) -> f64 {
        value.re
    }
    fn to_complex(self) -> Complex<f64> {
        Complex::new(self, 0.0)
    }
    fn sign(self) -> f64 {
        self.signum()
    }
}

impl Entry for Complex<f64> {
    fn from_complex(value: Complex<f64>) -> Self {
        value
    }
    fn to_complex(self) -> Complex<f64> {
        self
    }
}

/// A dense matrix, stored row by row.
#[derive(Clone, Debug)]
pub(super) struct Matrix<F> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<F>,
}

impl<F: Entry> Matrix<F> {
    pub(super) fn new(rows: usize, columns: usize, values: Vec<F>) -> Matrix<F> {
        Matrix { rows, columns, values }
    }

    /// Returns a matrix with ones on the main diagonal.
    pub(super) fn identity(rows: usize, columns: usize) -> Matrix<F> {
        let mut out = Matrix::new(rows, columns, vec![F::ZERO; rows * columns]);
        (0..rows.min(columns)).for_each(|d| out.put(d, d, F::ONE));
        out
    }

    /// Returns the entry in a row and a column.
    #[inline]
    pub(super) fn at(&self, row: usize, column: usize) -> F {
        self.values[row * self.columns + column]
    }

    /// Sets the entry in a row and a column.
    #[inline]
    pub(super) fn put(&mut self, row: usize, column: usize, value: F) {
        self.values[row * self.columns + column] = value;
    }

    /// Returns the conjugate transpose.
    pub(super) fn adjoint(&self) -> Matrix<F> {
        let values = (0..self.columns).flat_map(|j| (0..self.rows).map(move |i| self.at(i, j).conjugated()));
        Matrix::new(self.columns, self.rows, values.collect())
    }

    /// Returns the top left part of the matrix, with `rows` rows and `columns` columns.
    pub(super) fn part(&self, rows: usize, columns: usize) -> Matrix<F> {
        let values = (0..rows).flat_map(|i| self.values[i * self.columns..][..columns].iter().copied());
        Matrix::new(rows, columns, values.collect())
    }

    /// Exchanges two rows.
    pub(super) fn swap_rows(&mut self, a: usize, b: usize) {
        if a != b {
            (0..self.columns).for_each(|j| self.values.swap(a * self.columns + j, b * self.columns + j));
        }
    }
}

/// Returns the elements of a tensor of any float or complex type.
pub(crate) fn read<F: Entry>(input: &Tensor) -> Result<Vec<F>> {
    Ok(match input.dtype() {
        Float => input.values::<f32>()?.iter().map(|&v| F::from_real(v.into())).collect(),
        Double => input.values::<f64>()?.iter().map(|&v| F::from_real(v)).collect(),
        Half => input.values::<f16>()?.iter().map(|v| F::from_real(v.to_wide().into())).collect(),
        BFloat16 => input.values::<bf16>()?.iter().map(|v| F::from_real(v.to_wide().into())).collect(),
        Complex64 => {
            let wide = |v: &Complex<f32>| F::from_complex(Complex::new(v.re.into(), v.im.into()));
            input.values::<Complex<f32>>()?.iter().map(wide).collect()
        }
        Complex128 => input.values::<Complex<f64>>()?.iter().map(|&v| F::from_complex(v)).collect(),
        other => return Err(Error::unimplemented(format!("no matrices of {other}"))),
    })
}

/// Returns `values` as a tensor of any float or complex dtype; a real dtype keeps only the real parts.
pub(crate) fn write<F: Entry>(dtype: DType, shape: Shape, values: &[F]) -> Result<Tensor> {
    let real = values.iter().map(|v| v.real());
    Ok(match dtype {
        Float => Tensor::from_slice(&real.map(|v| v as f32).collect::<Vec<_>>(), shape)?,
        Double => Tensor::from_slice(&real.collect::<Vec<_>>(), shape)?,
        Half => Tensor::from_slice(&real.map(f16::from_f64).collect::<Vec<_>>(), shape)?,
        BFloat16 => Tensor::from_slice(&real.map(bf16::from_f64).collect::<Vec<_>>(), shape)?,
        Complex64 => {
            let narrow = |v: &F| Complex::new(v.to_complex().re as f32, v.to_complex().im as f32);
            Tensor::from_slice(&values.iter().map(narrow).collect::<Vec<_>>(), shape)?
        }
        _ => Tensor::from_slice(&values.iter().map(|v| v.to_complex()).collect::<Vec<_>>(), shape)?,
    })
}
