//! Matrix multiplication kernels: MatMul and the BatchMatMul ops.

use crate::numeric::broadcast::Plan;
use crate::numeric::dispatch::dispatch;
use crate::numeric::operand_cache::OperandCache;
use crate::numeric::panel::Panels;
use crate::numeric::product::{Matrix, Threads, is_worth_packing, packed, product, product_with};
use crate::numeric::scalar::Arithmetic;
use crate::numeric::widen::{Lane, narrowed, widened};
use crate::plan::matmul::{Batches, broadcast_batches, same_batches, single};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType::{self, *};
use graph::{Element, Shape, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

const TYPES: &[DType] = &[
    BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

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
];

/// Makes the kernel of a matrix product. A flipped factor is transposed, and by the batch ops conjugated too.
fn make(init: &KernelInit<'_>, flips: [bool; 2], batches: Batches) -> Result<Kernel> {
    let conjugates = init.node.op.name() != "MatMul";
    let cache = OperandCache::default();
    dispatch!(number, init.input_type(0), T => {
        Kernel::sync(move |ctx| multiply::<T>(ctx, flips, conjugates, batches, &cache))
    })
}

fn multiply<T: Lane>(
    ctx: &mut KernelContext<'_>,
    flips: [bool; 2],
    conjugates: bool,
    batches: Batches,
    cache: &OperandCache<(), Panels>,
) -> Result<()>
where
    T::Wide: Arithmetic,
{
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
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
    let mut out = Tensor::unspecified(T::Wide::DTYPE, Shape::new(&dims)?)?;
    if k == 0 || out.num_elements() == 0 {
        out.bytes_mut()?.fill(0);
    } else {
        let work = ProductSizes { m, k, n, flips, plan: &plan };
        let factor = |t: &Tensor, flip: bool| -> Result<Tensor> {
            let mut wide = widened::<T>(t)?;
            if conjugates && flip && T::DTYPE.is_complex() {
                wide.values_mut::<T::Wide>()?.iter_mut().for_each(|v| *v = v.conjugated());
            }
            Ok(wide)
        };
        match work.packed::<T>(y, cache)? {
            Some(panels) => {
                let x = widened::<T>(x)?;
                work.run_packed(x.values::<T::Wide>()?, &panels, out.values_mut()?);
            }
            None => {
                let (x, y) = (factor(x, flips[0])?, factor(y, flips[1])?);
                work.run(x.values()?, y.values()?, out.values_mut::<T::Wide>()?);
            }
        }
    }
    let out = narrowed::<T>(out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// The sizes and flips of a product: for each batch, an `m` by `k` matrix times a `k` by `n` matrix.
struct ProductSizes<'a> {
    m: usize,
    k: usize,
    n: usize,
    flips: [bool; 2],
    plan: &'a Plan,
}

impl ProductSizes<'_> {
    /// Returns the right factor packed into panels, from the cache if the previous step had the same tensor; `None`
    /// if packing does not pay.
    fn packed<T: Lane>(&self, y: &Tensor, cache: &OperandCache<(), Panels>) -> Result<Option<Arc<Panels>>> {
        let is_single =
            T::Wide::DTYPE == DType::Float && y.shape().rank() == 2 && self.plan.shape().rank() == 0;
        if !is_single || !is_worth_packing(self.m, self.k, self.n, self.flips[0]) {
            return Ok(None);
        }
        cache.get(y, (), || {
            let wide = widened::<T>(y)?;
            packed(oriented(wide.values()?, self.k, self.n, self.flips[1]))
        })
    }

    fn run_packed<W: Element>(&self, x: &[W], panels: &Panels, out: &mut [f32]) {
        let x = oriented(bytemuck::cast_slice(x), self.m, self.k, self.flips[0]);
        product_with(out, self.n, x, panels, Threads::for_work(self.m * self.k * self.n));
    }

    fn run<W: Arithmetic>(&self, x: &[W], y: &[W], out: &mut [W]) {
        let (m, k, n) = (self.m, self.k, self.n);
        let each = m.saturating_mul(k).saturating_mul(n);
        let a = |batch: usize| oriented(&x[batch * m * k..(batch + 1) * m * k], m, k, self.flips[0]);
        let b = |batch: usize| oriented(&y[batch * k * n..(batch + 1) * k * n], k, n, self.flips[1]);
        let mut batches = Vec::with_capacity(out.len() / (m * n));
        let repeats = self.plan.repeats();
        self.plan.walk(0, out.len() / (m * n), |_, len, [i, j]| {
            batches.extend(
                (0..len).map(|c| (if repeats[0] { i } else { i + c }, if repeats[1] { j } else { j + c })),
            );
        });
        let threads = Threads::for_work(each);
        let of_all = Threads::for_work(each.saturating_mul(batches.len()));
        if threads == Threads::One && of_all == Threads::All {
            out.par_chunks_mut(m * n)
                .zip(&batches)
                .for_each(|(out, &(i, j))| product(out, n, a(i), b(j), false, Threads::One));
        } else {
            for (out, &(i, j)) in out.chunks_mut(m * n).zip(&batches) {
                product(out, n, a(i), b(j), false, threads);
            }
        }
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
