//! Kernels of sparse matrices in compressed rows, which variants hold.

mod cholesky;
mod matrix;

use crate::linalg::FRACTIONS;
use crate::linalg::matrix::{read, write};
use crate::numeric::dispatch::{COMPLEX, dispatch};
use crate::numeric::scalar::Arithmetic;
use crate::numeric::scratch::check_scratch;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::DType::{self, Complex64, Complex128, Double, Float};
use graph::{Element, Shape, Tensor};
use matrix::{CsrMatrix, NewMatrix, Rows, check_sizes};
use num_complex::Complex;
use std::sync::Arc;

const TYPED: &[(&str, &[DType])] = &[("type", &[Float, Double, Complex64, Complex128])];

/// Evaluates an expression with `$T` as the Rust type of the entries.
macro_rules! fractions {
    ($dtype:expr, $T:ident => $body:expr) => {
        dispatch!(@arms $dtype, $T => $body;
            Float f32, Double f64, Complex64 Complex<f32>, Complex128 Complex<f64>)
    };
}
pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SparseTensorToCSRSparseMatrix", FRACTIONS, |_| Kernel::sync(of_sparse)),
    KernelDef::of("CSRSparseMatrixToSparseTensor", TYPED, |init| {
        let dtype = init.attr("type")?;
        Kernel::sync(move |ctx| to_sparse(ctx, dtype))
    }),
    KernelDef::of("DenseToCSRSparseMatrix", FRACTIONS, |_| Kernel::sync(of_dense)),
    KernelDef::of("CSRSparseMatrixToDense", TYPED, |init| {
        let dtype = init.attr("type")?;
        Kernel::sync(move |ctx| fractions!(dtype, T => to_dense::<T>(ctx)))
    }),
    KernelDef::of("CSRSparseMatrixComponents", TYPED, |init| {
        let dtype = init.attr("type")?;
        Kernel::sync(move |ctx| components(ctx, dtype))
    }),
    KernelDef::of("SparseMatrixNNZ", &[], |_| Kernel::sync(count_entries)),
    KernelDef::of("SparseMatrixTranspose", TYPED, |init| {
        let (dtype, conjugates): (DType, bool) = (init.attr("type")?, init.attr("conjugate")?);
        Kernel::sync(move |ctx| fractions!(dtype, T => transpose::<T>(ctx, conjugates)))
    }),
    KernelDef::of("SparseMatrixMatMul", FRACTIONS, |init| {
        let dtype = init.attr("T")?;
        let factors = Factors::of(init)?;
        let (transposes, conjugates) = (init.attr("transpose_output")?, init.attr("conjugate_output")?);
        Kernel::sync(move |ctx| fractions!(dtype, T => multiply::<T>(ctx, &factors, transposes, conjugates)))
    }),
    KernelDef::of("SparseMatrixSparseMatMul", TYPED, |init| {
        let dtype = init.attr("type")?;
        let factors = Factors::of(init)?;
        Kernel::sync(move |ctx| fractions!(dtype, T => multiply_sparse::<T>(ctx, &factors)))
    }),
    KernelDef::of("SparseMatrixOrderingAMD", &[], |_| Kernel::sync(ordering)),
    KernelDef::of("SparseMatrixSparseCholesky", TYPED, |init| {
        let dtype = init.attr("type")?;
        Kernel::sync(move |ctx| cholesky(ctx, dtype))
    }),
];

/// Returns the sparse matrix in input `i`, a scalar variant; `dtype` is the type of its entries, if the node names one.
fn matrix_input(ctx: &KernelContext<'_>, i: usize, dtype: Option<DType>) -> Result<Arc<CsrMatrix>> {
    let input = ctx.input(i)?;
    let matrix = match input.as_variants()? {
        [variant] if input.shape().rank() == 0 => variant.expect::<CsrMatrix>("a sparse matrix")?,
        _ => invalid!("Invalid input matrix: Shape must be rank 0 but is rank {}", input.shape().rank()),
    };
    if let Some(dtype) = dtype
        && matrix.dtype() != dtype
    {
        invalid!("Asked for a CSRSparseMatrix of type {dtype} but saw dtype: {}", matrix.dtype());
    }
    Ok(matrix)
}

fn set_matrix(ctx: &mut KernelContext<'_>, matrix: CsrMatrix) {
    ctx.set_output(0, Tensor::variant(matrix));
}

/// Returns a number of rows and of columns, and a number of matrices if there is a batch.
fn checked_sizes(sizes: &[i64], what: &str) -> Result<Vec<usize>> {
    if sizes.len() != 2 && sizes.len() != 3 {
        invalid!("{what} must have rank 2 or 3; but has rank: {}", sizes.len());
    }
    let size = |&size: &i64| match usize::try_from(size) {
        Ok(size) => Ok(size),
        Err(_) => invalid!("{what} has a negative size: {sizes:?}"),
    };
    sizes.iter().map(size).collect()
}

fn of_sparse(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if indices.shape().rank() != 2 || values.shape().rank() != 1 || shape.shape().rank() != 1 {
        invalid!(
            "indices must be a matrix, values and dense_shape vectors; got shapes {}, {} and {}",
            indices.shape(),
            values.shape(),
            shape.shape()
        );
    }
    let sizes = checked_sizes(shape.values()?, "SparseTensor")?;
    if indices.shape()[0] != values.num_elements() {
        invalid!(
            "Number of elements in indices ({}) and values ({}) do not match",
            indices.shape()[0],
            values.num_elements()
        );
    }
    if indices.shape()[1] != sizes.len() {
        invalid!("Index rank {} and shape rank {} do not match", indices.shape()[1], sizes.len());
    }
    let matrix = CsrMatrix::of_entries(&sizes, indices.values()?, values.clone())?;
    set_matrix(ctx, matrix);
    Ok(())
}

fn to_sparse(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let matrix = matrix_input(ctx, 0, Some(dtype))?;
    let [batch, rows, _] = matrix.extents();
    let rank = matrix.sizes.len();
    let mut indices = Vec::with_capacity(matrix.columns.len() * rank);
    for of in 0..batch {
        let columns = &matrix.columns[matrix.starts[of]..];
        let pointers = matrix.pointers(of);
        for row in 0..rows {
            for &column in &columns[pointers[row] as usize..pointers[row + 1] as usize] {
                if rank == 3 {
                    indices.push(of as i64);
                }
                indices.extend([row as i64, i64::from(column)]);
            }
        }
    }
    let sizes: Vec<i64> = matrix.sizes.iter().map(|&size| size as i64).collect();
    ctx.set_output(0, Tensor::from_slice(&indices, Shape::new(&[matrix.columns.len(), rank])?)?);
    ctx.set_output(1, matrix.values.clone());
    ctx.set_output(2, Tensor::vector(&sizes)?);
    Ok(())
}

fn of_dense(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (dense, indices) = (ctx.input(0)?, ctx.input(1)?);
    let sizes = dense.shape().dims();
    if sizes.len() != 2 && sizes.len() != 3 {
        invalid!("params must have rank == 2 or 3; but saw shape: {}", dense.shape());
    }
    let &[count, width] = indices.shape().dims() else {
        invalid!("indices must be a matrix, but saw shape {}", indices.shape());
    };
    if width != sizes.len() {
        invalid!(
            "indices.shape[1] must be equal to the rank of params, but saw: {width} vs. {}",
            sizes.len()
        );
    }
    let all = indices.values::<i64>()?;
    let matrix = fractions!(dense.dtype(), T => {
        let entries = dense.values::<T>()?;
        let mut chosen = Vec::with_capacity(count);
        for (i, index) in all.chunks_exact(width).enumerate() {
            let mut at = 0;
            for (&part, &size) in index.iter().zip(sizes) {
                let Some(part) = usize::try_from(part).ok().filter(|&part| part < size) else {
                    invalid!("indices[{i}] = {index:?} does not index into param shape {}", dense.shape());
                };
                at = at * size + part;
            }
            chosen.push(entries[at]);
        }
        CsrMatrix::of_entries(sizes, all, Tensor::vector(&chosen)?)
    })?;
    set_matrix(ctx, matrix);
    Ok(())
}

fn to_dense<T: Element + Arithmetic>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let matrix = matrix_input(ctx, 0, Some(T::DTYPE))?;
    let [_, rows, columns] = matrix.extents();
    let mut dense = Tensor::zeros(T::DTYPE, matrix.shape()?)?;
    let size = rows * columns;
    if size > 0 {
        let out = dense.values_mut::<T>()?.chunks_exact_mut(size);
        for (of, out) in matrix.matrices::<T>()?.iter().zip(out) {
            for row in 0..rows {
                of.row(row).for_each(|(column, value)| out[row * columns + column] = value);
            }
        }
    }
    ctx.set_output(0, dense);
    Ok(())
}

fn components(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let matrix = matrix_input(ctx, 0, Some(dtype))?;
    let index = ctx.scalar(1, "index")?.item::<i32>()?;
    let count = matrix.extents()[0];
    let Some(index) = usize::try_from(index).ok().filter(|&index| index < count) else {
        invalid!("index ({index}) not in [0, {count})");
    };
    let entries = matrix.starts[index]..matrix.starts[index + 1];
    ctx.set_output(0, Tensor::vector(matrix.pointers(index))?);
    ctx.set_output(1, Tensor::vector(&matrix.columns[entries.clone()])?);
    ctx.set_output(2, matrix.values.elements(entries)?);
    Ok(())
}

fn count_entries(ctx: &mut KernelContext<'_>) -> Result<()> {
    let matrix = matrix_input(ctx, 0, None)?;
    let counts: Vec<i32> = matrix.starts.windows(2).map(|pair| (pair[1] - pair[0]) as i32).collect();
    let shape = if matrix.sizes.len() == 3 { Shape::new(&[counts.len()])? } else { Shape::scalar() };
    ctx.set_output(0, Tensor::from_slice(&counts, shape)?);
    Ok(())
}

/// Returns a matrix's transpose, in which each row has its entries in the order of the columns.
fn transposed<T: Copy>(matrix: &Rows<'_, T>, of_entry: impl Fn(T) -> T) -> Result<NewMatrix<T>> {
    check_scratch::<usize>(matrix.columns + 1)?;
    let mut counts = vec![0usize; matrix.columns + 1];
    for row in 0..matrix.rows {
        matrix.row(row).for_each(|(column, _)| counts[column + 1] += 1);
    }
    for column in 0..matrix.columns {
        counts[column + 1] += counts[column];
    }
    let pointers = counts.iter().map(|&count| count as i32).collect();
    let mut places: Vec<Option<(i32, T)>> = vec![None; matrix.len()];
    for row in 0..matrix.rows {
        for (column, value) in matrix.row(row) {
            places[counts[column]] = Some((row as i32, of_entry(value)));
            counts[column] += 1;
        }
    }
    let (columns, values) = places.into_iter().flatten().unzip();
    Ok(NewMatrix { pointers, columns, values })
}

fn transpose<T: Element + Arithmetic>(ctx: &mut KernelContext<'_>, conjugates: bool) -> Result<()> {
    let matrix = matrix_input(ctx, 0, Some(T::DTYPE))?;
    let [_, rows, columns] = matrix.extents();
    check_sizes(&matrix.sizes_with(columns, rows))?;
    let entry = |value: T| if conjugates { value.conjugated() } else { value };
    let all = matrix.matrices::<T>()?.iter().map(|of| transposed(of, entry)).collect::<Result<Vec<_>>>()?;
    let transposed = CsrMatrix::of(&matrix.sizes_with(columns, rows), all)?;
    set_matrix(ctx, transposed);
    Ok(())
}

/// The forms of the two factors of a product: whether each is transposed, and whether it is conjugated.
#[derive(Clone, Copy, Debug)]
struct Factors {
    transposes: [bool; 2],
    conjugates: [bool; 2],
}

impl Factors {
    fn of(init: &KernelInit<'_>) -> Result<Factors> {
        let mut factors = Factors { transposes: [false; 2], conjugates: [false; 2] };
        for (i, name) in ["a", "b"].iter().enumerate() {
            let transposes: bool = init.attr(&format!("transpose_{name}"))?;
            let is_adjoint: bool = init.attr(&format!("adjoint_{name}"))?;
            if transposes && is_adjoint {
                invalid!("Only one of adjoint_{name} and transpose_{name} may be true.");
            }
            factors.transposes[i] = transposes || is_adjoint;
            factors.conjugates[i] = is_adjoint;
        }
        Ok(factors)
    }

    /// Returns the sizes of factor `i` in the product.
    fn sizes(&self, i: usize, [rows, columns]: [usize; 2]) -> [usize; 2] {
        if self.transposes[i] { [columns, rows] } else { [rows, columns] }
    }
}

/// Multiplies sparse matrices by dense ones.
fn multiply<T: Element + Arithmetic>(
    ctx: &mut KernelContext<'_>,
    factors: &Factors,
    transposes_output: bool,
    conjugates_output: bool,
) -> Result<()> {
    let (a, b) = (matrix_input(ctx, 0, None)?, ctx.input(1)?);
    if a.dtype() != T::DTYPE {
        invalid!("Input types don't match.  a.dtype == {} vs. b.dtype == {}", a.dtype(), T::DTYPE);
    }
    let dims = b.shape().dims();
    if a.sizes.len() != dims.len() {
        invalid!("Ranks of a and b must match, saw: {} vs. {}.", a.sizes.len(), dims.len());
    }
    let [batch, a_rows, a_columns] = a.extents();
    if dims.len() == 3 && dims[0] != batch {
        invalid!("Batch sizes of a and b must match, saw: {batch} vs. {}.", dims[0]);
    }
    let [b_rows, b_columns] = [dims[dims.len() - 2], dims[dims.len() - 1]];
    let ([rows, inner], [b_inner, columns]) =
        (factors.sizes(0, [a_rows, a_columns]), factors.sizes(1, [b_rows, b_columns]));
    if inner != b_inner {
        invalid!(
            "Inner product dimensions of A and B do not agree. Shapes are: {} vs. {}",
            a.shape()?,
            b.shape()
        );
    }
    let own = if transposes_output { [columns, rows] } else { [rows, columns] };
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&a.sizes_with(own[0], own[1]))?)?;
    let (b_size, size) = (b_rows * b_columns, rows * columns);
    let dense = b.values::<T>()?;
    // The strides of B along the inner axis and along the columns of the product, and those of the product.
    let b_strides = if factors.transposes[1] { [1, b_columns] } else { [b_columns, 1] };
    let strides = if transposes_output { [1, rows] } else { [columns, 1] };
    let values = out.values_mut::<T>()?;
    let conjugated = |value: T, is_conjugated: bool| if is_conjugated { value.conjugated() } else { value };
    for (i, matrix) in a.matrices::<T>()?.iter().enumerate() {
        let (b, out) = (&dense[i * b_size..][..b_size], &mut values[i * size..][..size]);
        for row in 0..a_rows {
            if row % 1024 == 0 {
                ctx.check_cancelled()?;
            }
            for (column, value) in matrix.row(row) {
                let (to, from) = if factors.transposes[0] { (column, row) } else { (row, column) };
                let factor = conjugated(value, factors.conjugates[0]);
                for j in 0..columns {
                    let term = conjugated(b[from * b_strides[0] + j * b_strides[1]], factors.conjugates[1]);
                    let sum = &mut out[to * strides[0] + j * strides[1]];
                    *sum = sum.plus(factor.times(term));
                }
            }
        }
        if conjugates_output {
            out.iter_mut().for_each(|value| *value = value.conjugated());
        }
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Multiplies sparse matrices by sparse ones. The product has an entry wherever a product of entries is added.
fn multiply_sparse<T: Element + Arithmetic>(ctx: &mut KernelContext<'_>, factors: &Factors) -> Result<()> {
    let inputs = [matrix_input(ctx, 0, Some(T::DTYPE))?, matrix_input(ctx, 1, Some(T::DTYPE))?];
    let [a, b] = &inputs;
    let inner = |i: usize, of: &CsrMatrix| {
        let [_, rows, columns] = of.extents();
        factors.sizes(i, [rows, columns])
    };
    let ([rows, a_inner], [b_inner, columns]) = (inner(0, a), inner(1, b));
    if a.sizes.len() != b.sizes.len() || a.extents()[0] != b.extents()[0] || a_inner != b_inner {
        invalid!(
            "Inner product dimensions of A and B do not agree.  Shapes are: {} vs. {}",
            a.shape()?,
            b.shape()?
        );
    }
    // The factors as they are in the product.
    let mut given = Vec::with_capacity(2);
    for (i, input) in inputs.iter().enumerate() {
        let entry = |value: T| if factors.conjugates[i] { value.conjugated() } else { value };
        given.push(if factors.transposes[i] {
            let [_, rows, columns] = input.extents();
            check_sizes(&input.sizes_with(columns, rows))?;
            let all = input.matrices::<T>()?;
            let all = all.iter().map(|of| transposed(of, entry)).collect::<Result<Vec<_>>>()?;
            Arc::new(CsrMatrix::of(&input.sizes_with(columns, rows), all)?)
        } else {
            input.clone()
        });
    }
    let mut products = Vec::with_capacity(a.extents()[0]);
    check_scratch::<(T, usize)>(columns)?;
    let mut sums = vec![T::ZERO; columns];
    let mut marks = vec![usize::MAX; columns];
    for (a, b) in given[0].matrices::<T>()?.iter().zip(&given[1].matrices::<T>()?) {
        let mut product = NewMatrix::new();
        marks.fill(usize::MAX);
        let mut found = Vec::new();
        for row in 0..rows {
            if row % 1024 == 0 {
                ctx.check_cancelled()?;
            }
            found.clear();
            for (inner, x) in a.row(row) {
                for (column, y) in b.row(inner) {
                    if marks[column] != row {
                        marks[column] = row;
                        sums[column] = T::ZERO;
                        found.push(column);
                    }
                    sums[column] = sums[column].plus(x.times(y));
                }
            }
            found.sort_unstable();
            found.iter().for_each(|&column| product.push(column, sums[column]));
            product.end_row()?;
        }
        products.push(product);
    }
    let product = CsrMatrix::of(&a.sizes_with(rows, columns), products)?;
    set_matrix(ctx, product);
    Ok(())
}

/// Returns the number of rows of a square matrix.
fn square(matrix: &CsrMatrix) -> Result<usize> {
    let [_, rows, columns] = matrix.extents();
    if rows != columns {
        invalid!("sparse matrix must be square; got: {rows} != {columns}");
    }
    Ok(rows)
}

fn ordering(ctx: &mut KernelContext<'_>) -> Result<()> {
    let matrix = matrix_input(ctx, 0, None)?;
    let size = square(&matrix)?;
    let orders = fractions!(matrix.dtype(), T => {
        Ok::<_, device::Error>(matrix.matrices::<T>()?.iter().flat_map(cholesky::ordering).collect::<Vec<_>>())
    })?;
    let orders: Vec<i32> = orders.into_iter().map(|row| row as i32).collect();
    let shape = Shape::new(&[&matrix.sizes[..matrix.sizes.len() - 2], &[size]].concat())?;
    ctx.set_output(0, Tensor::from_slice(&orders, shape)?);
    Ok(())
}

fn cholesky(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (matrix, permutation) = (matrix_input(ctx, 0, Some(dtype))?, ctx.input(1)?);
    let size = square(&matrix)?;
    let dims = permutation.shape().dims();
    if dims.len() + 1 != matrix.sizes.len() {
        invalid!("Permutation must have rank {}; got shape {}", matrix.sizes.len() - 1, permutation.shape());
    }
    if dims[dims.len() - 1] != size {
        invalid!(
            "permutation must have the same number of elements in each batch as the number of rows in sparse matrix; \
             got: {} != {size}",
            dims[dims.len() - 1]
        );
    }
    if dims.len() == 2 && dims[0] != matrix.sizes[0] {
        invalid!(
            "permutation must have the same batch size as the matrix; got: {} != {}",
            dims[0],
            matrix.sizes[0]
        );
    }
    let permutation = permutation.values::<i32>()?;
    let mut orders = Vec::with_capacity(matrix.extents()[0]);
    for i in 0..matrix.extents()[0] {
        let mut is_placed = vec![false; size];
        let mut order = Vec::with_capacity(size);
        for &row in &permutation[i * size..(i + 1) * size] {
            match usize::try_from(row).ok().filter(|&row| row < size && !is_placed[row]) {
                Some(row) => {
                    is_placed[row] = true;
                    order.push(row);
                }
                None => {
                    invalid!("permutation is not a permutation of the rows: it has {row} twice or in vain")
                }
            }
        }
        orders.push(order);
    }
    // Factors are computed in double precision.
    let factors = if COMPLEX.contains(&dtype) {
        factors_of::<Complex<f64>>(&matrix, &orders)?
    } else {
        factors_of::<f64>(&matrix, &orders)?
    };
    let values = if factors.dtype() == dtype {
        factors.values.clone()
    } else {
        let shape = factors.values.shape().clone();
        match dtype {
            Float => write::<f64>(dtype, shape, factors.values.values()?)?,
            _ => write::<Complex<f64>>(dtype, shape, factors.values.values()?)?,
        }
    };
    set_matrix(ctx, CsrMatrix { values, ..factors });
    Ok(())
}

fn factors_of<F: Element + crate::linalg::matrix::Entry>(
    matrix: &CsrMatrix,
    orders: &[Vec<usize>],
) -> Result<CsrMatrix> {
    let values: Vec<F> = read(&matrix.values)?;
    let wide = CsrMatrix { values: Tensor::vector(&values)?, ..matrix.clone() };
    let all = wide.matrices::<F>()?;
    let factors = all.iter().zip(orders).enumerate().map(|(i, (of, order))| cholesky::factor(of, order, i));
    CsrMatrix::of(&matrix.sizes, factors.collect::<Result<Vec<_>>>()?)
}

/// Makes the kernel of Conj for variants, which hold sparse matrices.
pub(crate) fn conjugate(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let matrix = matrix_input(ctx, 0, None)?;
        if !COMPLEX.contains(&matrix.dtype()) {
            let input = ctx.take_input(0)?;
            ctx.set_output(0, input);
            return Ok(());
        }
        let mut values = matrix.values.clone();
        crate::complex::conjugate(&mut values)?;
        let conjugate = CsrMatrix { values, ..CsrMatrix::clone(&matrix) };
        set_matrix(ctx, conjugate);
        Ok(())
    })
}
