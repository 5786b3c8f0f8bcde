//! Matrix multiplication kernels: MatMul and the BatchMatMul ops.

use crate::numeric::broadcast::Plan;
use crate::numeric::dispatch::dispatch;
use crate::numeric::operand_cache::OperandCache;
use crate::numeric::panel::Panels;
use crate::numeric::product::{Matrix, Threads, is_worth_packing, packed, product, product_with};
use crate::numeric::scalar::Arithmetic;
use crate::numeric::threads::for_parts;
use crate::numeric::widen::{from_wide, to_wide, wide_dtype};
use crate::plan::matmul::{Batches, broadcast_batches, same_batches, single};
use bytemuck::{cast_slice, cast_slice_mut};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use std::sync::Arc;

const TYPES: &[DType] = &[
    BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

const BYTES: &[DType] = &[Int8, UInt8];

/// The dtypes of BatchMatMulV3 for which factors of 8-bit integers are converted to the dtype of the output.
const SMALL_FACTORS: [&[(&str, &[DType])]; 3] = [
    &[("Ta", BYTES), ("Tb", BYTES), ("Tout", &[Int32])],
    &[("Ta", BYTES), ("Tb", &[BFloat16]), ("Tout", &[BFloat16])],
    &[("Ta", &[BFloat16]), ("Tb", BYTES), ("Tout", &[BFloat16])],
];

macro_rules! same_types {
    ($dtype:ident) => {
        &[("Ta", &[$dtype]), ("Tb", &[$dtype]), ("Tout", &[$dtype])]
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MatMul", &[("T", TYPES)], |init| {
        let flips = [init.attr("transpose_a")?, init.attr("transpose_b")?];
        make(init, flips, single)
    }),
    KernelDef::of("BatchMatMul", &[("T", TYPES)], |init| {
        make(init, [init.attr("adj_x")?, init.attr("adj_y")?], same_batches)
    }),
    KernelDef::of("BatchMatMulV2", &[("T", TYPES)], |init| {
        make(init, [init.attr("adj_x")?, init.attr("adj_y")?], broadcast_batches)
    }),
    KernelDef::of("BatchMatMulV3", SMALL_FACTORS[0], mixed),
    KernelDef::of("BatchMatMulV3", SMALL_FACTORS[1], mixed),
    KernelDef::of("BatchMatMulV3", SMALL_FACTORS[2], mixed),
    KernelDef::of("BatchMatMulV3", same_types!(BFloat16), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Half), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Float), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Double), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Int16), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Int32), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Int64), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Complex64), mixed),
    KernelDef::of("BatchMatMulV3", same_types!(Complex128), mixed),
];

/// Makes the kernel of a matrix product whose factors may have other types than the product.
fn mixed(init: &KernelInit<'_>) -> Result<Kernel> {
    make(init, [init.attr("adj_x")?, init.attr("adj_y")?], broadcast_batches)
}

/// Returns a factor converted to `dtype`, the dtype of the product. Only factors of 8-bit integers have another dtype.
fn with_type(factor: &Tensor, dtype: DType) -> Result<Tensor> {
    if factor.dtype() == dtype {
        return Ok(factor.clone());
    }
    let numbers: Vec<i32> = match factor.dtype() {
        UInt8 => factor.values::<u8>()?.iter().map(|&v| v.into()).collect(),
        _ => factor.values::<i8>()?.iter().map(|&v| v.into()).collect(),
    };
    let shape = factor.shape().clone();
    Ok(match dtype {
        Int32 => Tensor::from_slice(&numbers, shape)?,
        _ => {
            let rounded = numbers.into_iter().map(|v| half::bf16::from_f32(v as f32));
            Tensor::from_slice(&rounded.collect::<Vec<_>>(), shape)?
        }
    })
}

/// Makes the kernel of a matrix product. A factor whose flag in `flips` is set is transposed; the batch ops also
/// conjugate it.
fn make(init: &KernelInit<'_>, flips: [bool; 2], batches: Batches) -> Result<Kernel> {
    let conjugates = init.node.op.name() != "MatMul";
    let cache = OperandCache::default();
    // Products of unsigned integers are computed as products of signed integers, which have the same bits.
    let dtype = init.output_type(0);
    dispatch!(@arms wide_dtype(dtype), W => {
        Kernel::sync(move |ctx| multiply(ctx, flips, conjugates, batches, &cache, write_products::<W>, dtype))
    }; Float f32, Double f64, Int8 i8, Int16 i16, Int32 i32, Int64 i64, UInt8 i8, UInt16 i16, UInt32 i32, UInt64 i64,
        Complex64 num_complex::Complex<f32>, Complex128 num_complex::Complex<f64>)
}

/// A function `(sizes, factors, conjugate, out)` that sets `out` to the products of the factors; all tensors have the
/// dtype of the computation. A factor is conjugated if its flag is set.
type WriteProducts = fn(&ProductSizes<'_>, [&Tensor; 2], [bool; 2], &mut Tensor) -> Result<()>;

fn multiply(
    ctx: &mut KernelContext<'_>,
    flips: [bool; 2],
    conjugates: bool,
    batches: Batches,
    cache: &OperandCache<(), Panels>,
    write_products: WriteProducts,
    dtype: DType,
) -> Result<()> {
    let (x, y) = (&with_type(ctx.input(0)?, dtype)?, &with_type(ctx.input(1)?, dtype)?);
    let plan = batches(x.shape(), y.shape())?;
    let size = |t: &Tensor, flip: bool| {
        let [.., rows, columns] = *t.shape().dims() else { return [0, 0] };
        if flip { [columns, rows] } else { [rows, columns] }
    };
    let ([m, k], [inner, n]) = (size(x, flips[0]), size(y, flips[1]));
    if k != inner {
        device::invalid!("Matrix size-incompatible: In[0]: {}, In[1]: {}", x.shape(), y.shape());
    }
    let mut dims = plan.shape().dims().to_vec();
    dims.extend([m, n]);
    let mut out = Tensor::unspecified(wide_dtype(dtype), Shape::new(&dims)?)?;
    if k == 0 || out.num_elements() == 0 {
        out.bytes_mut()?.fill(0);
    } else {
        let work = ProductSizes { m, k, n, flips, plan: &plan };
        match work.packed(y, cache)? {
            Some(panels) => work.run_packed(to_wide(x)?.values()?, &panels, out.values_mut()?),
            None => {
                let conjugated = flips.map(|flip| flip && conjugates && dtype.is_complex());
                write_products(&work, [&to_wide(x)?, &to_wide(y)?], conjugated, &mut out)?;
            }
        }
    }
    let out = from_wide(out, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}

fn write_products<W: Arithmetic>(
    sizes: &ProductSizes<'_>,
    factors: [&Tensor; 2],
    conjugated: [bool; 2],
    out: &mut Tensor,
) -> Result<()> {
    let mut factors = factors.map(Tensor::clone);
    for (factor, _) in factors.iter_mut().zip(conjugated).filter(|(_, conjugated)| *conjugated) {
        cast_slice_mut::<u8, W>(factor.bytes_mut()?).iter_mut().for_each(|v| *v = v.conjugated());
    }
    let [x, y] = &factors;
    sizes.run::<W>(cast_slice(x.bytes()?), cast_slice(y.bytes()?), cast_slice_mut(out.bytes_mut()?));
    Ok(())
}

/// The sizes of a product, an `m` by `k` matrix times a `k` by `n` matrix for each batch, and whether each factor is
/// transposed.
struct ProductSizes<'a> {
    m: usize,
    k: usize,
    n: usize,
    flips: [bool; 2],
    plan: &'a Plan,
}

impl ProductSizes<'_> {
    /// Returns the right factor packed into panels, from the cache if the previous step had the same tensor; `None` if
    /// packing costs more than it saves.
    fn packed(&self, y: &Tensor, cache: &OperandCache<(), Panels>) -> Result<Option<Arc<Panels>>> {
        let is_single =
            wide_dtype(y.dtype()) == DType::Float && y.shape().rank() == 2 && self.plan.shape().rank() == 0;
        if !is_single || !is_worth_packing(self.m, self.k, self.n, self.flips[0]) {
            return Ok(None);
        }
        cache.get(y, (), || packed(oriented(to_wide(y)?.values()?, self.k, self.n, self.flips[1])))
    }

    fn run_packed(&self, x: &[f32], panels: &Panels, out: &mut [f32]) {
        let x = oriented(x, self.m, self.k, self.flips[0]);
        product_with(out, self.n, x, panels, Threads::for_work(self.m * self.k * self.n));
    }

    /// Returns, for each of `count` products, the indices of its two matrices in the batches of the factors.
    fn pairs(&self, count: usize) -> Vec<(usize, usize)> {
        let mut pairs = Vec::with_capacity(count);
        let repeats = self.plan.repeats();
        self.plan.walk(0, count, |_, len, [i, j]| {
            pairs.extend(
                (0..len).map(|c| (if repeats[0] { i } else { i + c }, if repeats[1] { j } else { j + c })),
            );
        });
        pairs
    }

    fn run<W: Arithmetic>(&self, x: &[W], y: &[W], out: &mut [W]) {
        let (m, k, n) = (self.m, self.k, self.n);
        let pairs = self.pairs(out.len() / (m * n));
        let each = m.saturating_mul(k).saturating_mul(n);
        let threads = Threads::for_work(each);
        let of_all = Threads::for_work(each.saturating_mul(pairs.len()));
        let is_parallel = threads == Threads::One && of_all == Threads::All;
        for_parts(out, m * n, is_parallel, |batch, out| {
            let (i, j) = pairs[batch];
            let a = oriented(&x[i * m * k..(i + 1) * m * k], m, k, self.flips[0]);
            let b = oriented(&y[j * k * n..(j + 1) * k * n], k, n, self.flips[1]);
            product(out, n, a, b, false, threads);
        });
    }
}

/// Returns a view of a `rows` by `columns` matrix stored row by row in `values`, or, if `flipped`, column by column.
fn oriented<T>(values: &[T], rows: usize, columns: usize, flipped: bool) -> Matrix<'_, T> {
    if flipped {
        Matrix::new(values, columns, rows, rows).transposed()
    } else {
        Matrix::new(values, rows, columns, columns)
    }
}
