//! Sums of products by Einstein's convention: labels name axes, and what the result lacks is summed over.

use super::dispatch::dispatch;
use super::product::{Matrix, Threads, product};
use super::scalar::Arithmetic;
use super::wide::{Lane, narrowed, widened};
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::DType::{self, *};
use graph::ops::einsum::Equation;
use graph::{Element, Shape, Tensor};
use rustc_hash::FxHashMap;

const TYPES: &[(&str, &[DType])] =
    &[("T", &[Int64, Int32, Half, Float, Double, Complex64, Complex128, BFloat16])];

pub(super) const KERNELS: &[KernelDef] = &[KernelDef::of("Einsum", TYPES, |init| {
    let equation = Equation::parse(&init.attr::<std::string::String>("equation")?)?;
    if init.inputs.len() > 2 {
        invalid!("Expected at most two inputs, got {}", init.inputs.len());
    }
    if equation.inputs.len() != init.inputs.len() {
        invalid!("Expected {} inputs in the equation but got: {}", equation.inputs.len(), init.inputs.len());
    }
    dispatch!(number, init.output_type(0), T => Kernel::sync(move |ctx| {
        let out = einsum::<T>(ctx, &equation)?;
        ctx.set_output(0, out);
        Ok(())
    }))
})];

/// An axis: a label of the equation, or one that an ellipsis stands for, counted from the last.
type Label = i32;

/// Labels by size.
type Sizes = FxHashMap<Label, usize>;

/// The labels of an operand of this rank.
fn labels(term: &[char], rank: usize) -> Result<Vec<Label>> {
    let named = term.iter().filter(|&&c| c != '.').count();
    let has_ellipsis = named < term.len();
    let Some(hidden) = rank.checked_sub(named).filter(|&hidden| hidden == 0 || has_ellipsis) else {
        invalid!("Expected input to have rank {named} but got rank {rank}");
    };
    let mut out = Vec::with_capacity(rank);
    for &c in term {
        match c {
            '.' => out.extend((1..=hidden).rev().map(|back| -(back as Label))),
            c => out.push(c as Label),
        }
    }
    Ok(out)
}

/// An operand whose labels are different, as a walk over its memory.
struct View<'a, W> {
    values: &'a [W],
    steps: FxHashMap<Label, usize>,
}

impl<'a, W: Arithmetic> View<'a, W> {
    /// A repeated label walks along a diagonal; an axis of size 1 stands still.
    fn new(values: &'a [W], shape: &Shape, labels: &[Label]) -> View<'a, W> {
        let mut steps = FxHashMap::default();
        for ((&label, &stride), &size) in labels.iter().zip(&shape.strides()).zip(shape.iter()) {
            *steps.entry(label).or_insert(0) += if size == 1 { 0 } else { stride };
        }
        View { values, steps }
    }

    /// The elements in the order of `kept`, each the sum over `summed`.
    fn packed(&self, kept: &[Label], summed: &[Label], sizes: &Sizes) -> Vec<W> {
        let axes = |labels: &[Label]| -> Vec<(usize, usize)> {
            labels.iter().map(|l| (sizes[l], self.steps.get(l).copied().unwrap_or(0))).collect()
        };
        let (kept, summed) = (axes(kept), axes(summed));
        let mut out = Vec::new();
        walk(&kept, 0, &mut |start| {
            let mut sum = W::ZERO;
            walk(&summed, start, &mut |at| sum = sum.plus(self.values[at]));
            out.push(sum);
        });
        out
    }
}

/// Calls with each position of a box of axes (size and step), the last one fastest.
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

fn einsum<T: Lane>(ctx: &KernelContext<'_>, equation: &Equation) -> Result<Tensor>
where
    T::Wide: Arithmetic,
{
    let inputs = ctx.inputs_from(0)?;
    let mut sizes = Sizes::default();
    let mut operands = Vec::new();
    for (input, term) in inputs.iter().zip(&equation.inputs) {
        let labels = labels(term, input.shape().rank())?;
        for (&label, &size) in labels.iter().zip(input.shape().iter()) {
            let known = sizes.entry(label).or_insert(size);
            let broadcasts = label < 0 && (*known == 1 || size == 1);
            if *known != size && !broadcasts {
                invalid!(
                    "Expected dimension {known} at axis of the input shaped {} but got dimension {size}",
                    input.shape()
                );
            }
            if broadcasts {
                *known = if *known == 1 { size } else { *known };
            }
        }
        operands.push(labels);
    }
    let hidden = sizes.keys().filter(|l| **l < 0).count();
    let has_ellipsis = equation.output.contains(&'.');
    let named = equation.output.iter().filter(|&&c| c != '.').count();
    let output = labels(&equation.output, named + if has_ellipsis { hidden } else { 0 })?;
    if let Some(unknown) = output.iter().find(|l| !sizes.contains_key(l)) {
        let name = u32::try_from(*unknown).ok().and_then(char::from_u32).unwrap_or('.');
        invalid!("Explicit einsum expression does not have the output label '{name}' in its inputs");
    }
    let wide = inputs.iter().map(|t| widened::<T>(t)).collect::<Result<Vec<_>>>()?;
    let mut unique: Vec<Label> = Vec::new();
    output.iter().for_each(|l| {
        if !unique.contains(l) {
            unique.push(*l)
        }
    });
    let distinct = |labels: &[Label]| {
        let mut out: Vec<Label> = Vec::new();
        labels.iter().for_each(|l| {
            if !out.contains(l) {
                out.push(*l)
            }
        });
        out
    };
    let view = |i: usize| -> Result<View<'_, T::Wide>> {
        Ok(View::new(wide[i].values::<T::Wide>()?, inputs[i].shape(), &operands[i]))
    };
    let first = distinct(&operands[0]);
    let (values, order) = match operands.get(1).map(|o| distinct(o)) {
        None => {
            let summed: Vec<Label> = first.iter().copied().filter(|l| !unique.contains(l)).collect();
            (view(0)?.packed(&unique, &summed, &sizes), unique.clone())
        }
        Some(second) => {
            let pick = |from: &[Label], other: &[Label], in_other: bool, in_output: bool| -> Vec<Label> {
                let fits = |l: &&Label| other.contains(l) == in_other && unique.contains(l) == in_output;
                from.iter().filter(fits).copied().collect()
            };
            let batch = pick(&first, &second, true, true);
            let inner = pick(&first, &second, true, false);
            let rows = pick(&first, &second, false, true);
            let columns = pick(&second, &first, false, true);
            let a = view(0)?.packed(
                &[&batch[..], &rows, &inner].concat(),
                &pick(&first, &second, false, false),
                &sizes,
            );
            let b = view(1)?.packed(
                &[&batch[..], &inner, &columns].concat(),
                &pick(&second, &first, false, false),
                &sizes,
            );
            let count = |labels: &[Label]| labels.iter().map(|l| sizes[l]).product::<usize>();
            let (m, k, n) = (count(&rows), count(&inner), count(&columns));
            let order = [&batch[..], &rows, &columns].concat();
            let shape = Shape::new(&order.iter().map(|l| sizes[l]).collect::<Vec<_>>())?;
            let mut out = Tensor::zeros(T::Wide::DTYPE, shape)?;
            let products = out.values_mut::<T::Wide>()?;
            if m * n > 0 && k > 0 {
                let threads = Threads::for_work(m.saturating_mul(k).saturating_mul(n));
                for (i, out) in products.chunks_exact_mut(m * n).enumerate() {
                    let x = Matrix::new(&a[i * m * k..(i + 1) * m * k], m, k, k);
                    let y = Matrix::new(&b[i * k * n..(i + 1) * k * n], k, n, n);
                    product(out, n, x, y, false, threads);
                }
            }
            (products.to_vec(), order)
        }
    };
    // Into the order of the output; a repeated label there fills a diagonal.
    let dims: Vec<usize> = output.iter().map(|l| sizes[l]).collect();
    let mut out = Tensor::zeros(T::Wide::DTYPE, Shape::new(&dims)?)?;
    let to = {
        let strides = out.shape().strides();
        let step = |label: &Label| -> usize {
            output.iter().zip(&strides).filter(|(l, _)| *l == label).map(|(_, s)| s).sum()
        };
        order.iter().map(|l| (sizes[l], step(l))).collect::<Vec<_>>()
    };
    let places = out.values_mut::<T::Wide>()?;
    let mut next = values.into_iter();
    let mut missing = false;
    walk(&to, 0, &mut |at| match next.next() {
        Some(value) => places[at] = value,
        None => missing = true,
    });
    if missing {
        return Err(Error::internal("an einsum has fewer results than places"));
    }
    narrowed::<T>(out)
}
