//! Sums of products by Einstein's convention: labels name axes, and what the result lacks is summed over.

use super::dispatch::dispatch;
use super::product::{Matrix, Threads, product};
use super::scalar::{Arithmetic, Semiring};
use super::wide::{Lane, narrowed, widened};
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::DType::{self, *};
use graph::ops::einsum::Equation;
use graph::{Element, Shape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

const TYPES: &[(&str, &[DType])] =
    &[("T", &[Int64, Int32, Half, Float, Double, Complex64, Complex128, BFloat16])];

pub(super) const KERNELS: &[KernelDef] = &[KernelDef::of("Einsum", TYPES, |init| {
    let equation = equation(init)?;
    dispatch!(number, init.output_type(0), T => Kernel::sync(move |ctx| {
        let out = einsum::<T>(ctx, &equation)?;
        ctx.set_output(0, out);
        Ok(())
    }))
})];

/// The node's, of as many operands as it has.
pub(in crate::kernels) fn equation(init: &KernelInit<'_>) -> Result<Equation> {
    let equation = Equation::parse(&init.attr::<std::string::String>("equation")?)?;
    if init.inputs.len() > 2 {
        invalid!("Expected at most two inputs, got {}", init.inputs.len());
    }
    if equation.inputs.len() != init.inputs.len() {
        invalid!("Expected {} inputs in the equation but got: {}", equation.inputs.len(), init.inputs.len());
    }
    Ok(equation)
}

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

/// Axes from the outermost on: sizes, and elements from one index to the next.
pub(in crate::kernels) type Axes = SmallVec<[(usize, usize); 6]>;

/// How a sum of products of tensors of certain shapes goes: each operand is reordered, and summed over what only it has;
/// of two the products of matrices follow; then the results go where they belong in the output.
pub(in crate::kernels) struct Plan {
    pub(in crate::kernels) operands: SmallVec<[Operand; 2]>,
    /// Batches, rows, what is summed over, columns.
    pub(in crate::kernels) product: Option<[usize; 4]>,
    /// The output's.
    pub(in crate::kernels) shape: Shape,
    /// Where the results go in it, in their order.
    pub(in crate::kernels) to: Axes,
}

/// How an operand's elements are walked.
pub(in crate::kernels) struct Operand {
    pub(in crate::kernels) kept: Axes,
    pub(in crate::kernels) summed: Axes,
}

impl Plan {
    pub(in crate::kernels) fn new(equation: &Equation, shapes: &[&Shape]) -> Result<Plan> {
        let mut sizes = Sizes::default();
        let mut operands: SmallVec<[Vec<Label>; 2]> = SmallVec::new();
        for (shape, term) in shapes.iter().zip(&equation.inputs) {
            let labels = labels(term, shape.rank())?;
            for (&label, &size) in labels.iter().zip(shape.iter()) {
                let known = sizes.entry(label).or_insert(size);
                let broadcasts = label < 0 && (*known == 1 || size == 1);
                if *known != size && !broadcasts {
                    invalid!(
                        "Expected dimension {known} at axis of the input shaped {shape} but got dimension {size}"
                    );
                }
                if broadcasts {
                    *known = if *known == 1 { size } else { *known };
                }
            }
            operands.push(labels);
        }
        let output = output_labels(equation, &sizes)?;
        let unique = distinct(&output);
        let walked = |i: usize, kept: &[Label], summed: &[Label]| {
            let steps = steps(shapes[i], &operands[i]);
            let axes = |labels: &[Label]| -> Axes {
                labels.iter().map(|l| (sizes[l], steps.get(l).copied().unwrap_or(0))).collect()
            };
            Operand { kept: axes(kept), summed: axes(summed) }
        };
        let first = distinct(&operands[0]);
        let (walks, product, order) = match operands.get(1).map(|o| distinct(o)) {
            None => {
                let summed: Vec<Label> = first.iter().copied().filter(|l| !unique.contains(l)).collect();
                (SmallVec::from_iter([walked(0, &unique, &summed)]), None, unique)
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
                let left = [&batch[..], &rows, &inner].concat();
                let right = [&batch[..], &inner, &columns].concat();
                let walks = SmallVec::from_iter([
                    walked(0, &left, &pick(&first, &second, false, false)),
                    walked(1, &right, &pick(&second, &first, false, false)),
                ]);
                let count = |labels: &[Label]| labels.iter().map(|l| sizes[l]).product::<usize>();
                let product = [count(&batch), count(&rows), count(&inner), count(&columns)];
                (walks, Some(product), [&batch[..], &rows, &columns].concat())
            }
        };
        let dims: Vec<usize> = output.iter().map(|l| sizes[l]).collect();
        let shape = Shape::new(&dims)?;
        let strides = shape.strides();
        // A repeated label fills a diagonal.
        let step = |label: &Label| -> usize {
            output.iter().zip(&strides).filter(|(l, _)| *l == label).map(|(_, s)| s).sum()
        };
        let to = order.iter().map(|l| (sizes[l], step(l))).collect();
        Ok(Plan { operands: walks, product, shape, to })
    }

    /// How many results there are; the output's other elements are zeros.
    pub(in crate::kernels) fn results(&self) -> usize {
        self.to.iter().map(|axis| axis.0).product()
    }
}

fn distinct(labels: &[Label]) -> Vec<Label> {
    let mut out: Vec<Label> = Vec::new();
    for label in labels {
        if !out.contains(label) {
            out.push(*label);
        }
    }
    out
}

fn output_labels(equation: &Equation, sizes: &Sizes) -> Result<Vec<Label>> {
    let hidden = sizes.keys().filter(|l| **l < 0).count();
    let has_ellipsis = equation.output.contains(&'.');
    let named = equation.output.iter().filter(|&&c| c != '.').count();
    let output = labels(&equation.output, named + if has_ellipsis { hidden } else { 0 })?;
    if let Some(unknown) = output.iter().find(|l| !sizes.contains_key(l)) {
        let name = u32::try_from(*unknown).ok().and_then(char::from_u32).unwrap_or('.');
        invalid!("Explicit einsum expression does not have the output label '{name}' in its inputs");
    }
    Ok(output)
}

/// From one index of each label to the next: a repeated one walks along a diagonal, an axis of size 1 stands still.
fn steps(shape: &Shape, labels: &[Label]) -> FxHashMap<Label, usize> {
    let mut steps = FxHashMap::default();
    for ((&label, &stride), &size) in labels.iter().zip(&shape.strides()).zip(shape.iter()) {
        *steps.entry(label).or_insert(0) += if size == 1 { 0 } else { stride };
    }
    steps
}

/// The elements of an operand in the order of the axes it keeps, each the sum over the others.
fn packed<W: Arithmetic>(values: &[W], operand: &Operand) -> Vec<W> {
    let mut out = Vec::new();
    walk(&operand.kept, 0, &mut |start| {
        let mut sum = W::ZERO;
        walk(&operand.summed, start, &mut |at| sum = sum.plus(values[at]));
        out.push(sum);
    });
    out
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
    let shapes: SmallVec<[&Shape; 2]> = inputs.iter().map(|input| input.shape()).collect();
    let plan = Plan::new(equation, &shapes)?;
    let wide = inputs.iter().map(|t| widened::<T>(t)).collect::<Result<Vec<_>>>()?;
    let operand = |i: usize| -> Result<Vec<T::Wide>> { Ok(packed(wide[i].values()?, &plan.operands[i])) };
    let values = match plan.product {
        None => operand(0)?,
        Some([batches, m, k, n]) => {
            let (a, b) = (operand(0)?, operand(1)?);
            let mut out = vec![T::Wide::ZERO; batches * m * n];
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
    };
    if values.len() < plan.results() {
        return Err(Error::internal("an einsum has fewer results than places"));
    }
    let mut out = Tensor::zeros(T::Wide::DTYPE, plan.shape)?;
    let places = out.values_mut::<T::Wide>()?;
    let mut next = values.into_iter();
    walk(&plan.to, 0, &mut |at| {
        if let Some(value) = next.next() {
            places[at] = value;
        }
    });
    narrowed::<T>(out)
}
