//! `Einsum`: sums of products by Einstein's convention. Labels name axes; labels missing from the result are summed
//! over.

use crate::numeric::dispatch::dispatch;
use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::scalar::Arithmetic;
use crate::numeric::widen::{Lane, narrowed, widened};
use crate::plan::einsum::{EinsumPlan, OperandAxes, equation};
use device::kernel::{Kernel, KernelDef};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::ops::einsum::Equation;
use graph::{Shape, Tensor};
use smallvec::SmallVec;

const TYPES: &[(&str, &[DType])] =
    &[("T", &[Int64, Int32, Half, Float, Double, Complex64, Complex128, BFloat16])];

pub(super) const KERNELS: &[KernelDef] = &[KernelDef::of("Einsum", TYPES, |init| {
    let equation = equation(init)?;
    let types = match init.output_type(0) {
        Int32 => Types::of::<i32>(),
        Int64 => Types::of::<i64>(),
        dtype => dispatch!(fraction, dtype, T => Ok(Types::of::<T>()))?,
    };
    Kernel::sync(move |ctx| {
        let out = types.einsum(&ctx.inputs_from(0)?, &equation)?;
        ctx.set_output(0, out);
        Ok(())
    })
})];

/// The functions of the kernel that depend on the element type.
struct Types {
    widen: fn(&Tensor) -> Result<Tensor>,
    /// Returns the sums of products of the widened operands.
    sum: fn(&[Tensor], EinsumPlan) -> Result<Tensor>,
    narrow: fn(Tensor) -> Result<Tensor>,
}

impl Types {
    fn of<T: Lane<Wide: Arithmetic>>() -> Types {
        Types { widen: widened::<T>, sum: sum_of_products::<T::Wide>, narrow: narrowed::<T> }
    }

    fn einsum(&self, inputs: &[&Tensor], equation: &Equation) -> Result<Tensor> {
        let shapes: SmallVec<[&Shape; 2]> = inputs.iter().map(|input| input.shape()).collect();
        let plan = EinsumPlan::new(equation, &shapes)?;
        let wide = inputs.iter().map(|t| (self.widen)(t)).collect::<Result<Vec<_>>>()?;
        (self.narrow)((self.sum)(&wide, plan)?)
    }
}

/// Returns the elements of an operand in the order of its kept axes, summed over all other axes of the operand.
fn packed<W: Arithmetic>(values: &[W], operand: &OperandAxes) -> Vec<W> {
    let mut out = Vec::new();
    walk(&operand.kept, 0, &mut |start| {
        let mut sum = W::ZERO;
        walk(&operand.summed, start, &mut |at| sum = sum.plus(values[at]));
        out.push(sum);
    });
    out
}

/// Calls `visit` with the position of each element of a box, whose axes are given by size and step; the last axis
/// varies fastest.
fn walk(axes: &[(usize, usize)], start: usize, visit: &mut dyn FnMut(usize)) {
    if axes.iter().any(|a| a.0 == 0) {
        return;
    }
    let mut index = vec![0; axes.len()];
    let mut at = start;
    loop {
        visit(at);
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            let (size, step) = axes[axis];
            index[axis] += 1;
            at += step;
            if index[axis] < size {
                break;
            }
            at -= size * step;
            index[axis] = 0;
        }
    }
}

fn sum_of_products<W: Arithmetic>(inputs: &[Tensor], plan: EinsumPlan) -> Result<Tensor> {
    let operand = |i: usize| -> Result<Vec<W>> { Ok(packed(inputs[i].values()?, &plan.operands[i])) };
    let values = match plan.product {
        None => operand(0)?,
        Some(sizes) => products(&operand(0)?, &operand(1)?, sizes),
    };
    if values.len() < plan.results() {
        return Err(Error::internal("an einsum has fewer results than output elements"));
    }
    let mut out = Tensor::zeros(W::DTYPE, plan.shape)?;
    let elements = out.values_mut::<W>()?;
    let mut next = values.into_iter();
    walk(&plan.to, 0, &mut |at| {
        if let Some(value) = next.next() {
            elements[at] = value;
        }
    });
    Ok(out)
}

/// Returns the products of batches of `m` by `k` and `k` by `n` matrices.
fn products<W: Arithmetic>(a: &[W], b: &[W], [batches, m, k, n]: [usize; 4]) -> Vec<W> {
    let mut out = vec![W::ZERO; batches * m * n];
    if m * n > 0 && k > 0 {
        let threads = Threads::for_work(m.saturating_mul(k).saturating_mul(n));
        for (i, out) in out.chunks_exact_mut(m * n).enumerate() {
            let x = Matrix::new(&a[i * m * k..(i + 1) * m * k], m, k, k);
            let y = Matrix::new(&b[i * k * n..(i + 1) * k * n], k, n, n);
            product(out, n, x, y, false, threads);
        }
    }
    out
}
