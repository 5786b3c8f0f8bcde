//! `Einsum`: sums of products by Einstein's convention. Labels name axes; labels missing from the result are summed
//! over.

use crate::numeric::dispatch::dispatch;
use crate::numeric::product::{Matrix, Threads, product};
use crate::numeric::scalar::{Arithmetic, Semiring};
use crate::numeric::wide::{Lane, narrowed, widened};
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
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

/// Returns the node's equation, after checking that it has as many operands as the node has inputs.
pub fn equation(init: &KernelInit<'_>) -> Result<Equation> {
    let equation = Equation::parse(&init.attr::<std::string::String>("equation")?)?;
    if init.inputs.len() > 2 {
        invalid!("Expected at most two inputs, got {}", init.inputs.len());
    }
    if equation.inputs.len() != init.inputs.len() {
        invalid!("Expected {} inputs in the equation but got: {}", equation.inputs.len(), init.inputs.len());
    }
    Ok(equation)
}

/// An axis: the character of a label, or the negated position, counted from the last, of an axis in the ellipsis.
type Label = i32;

/// The size of each label.
type Sizes = FxHashMap<Label, usize>;

/// Returns the labels of an operand of rank `rank`.
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

/// Axes from the outermost to the innermost: the size, and the elements from one index to the next.
pub type Axes = SmallVec<[(usize, usize); 6]>;

/// The plan for an einsum of tensors of certain shapes. Each operand is reordered, and summed over the labels that
/// neither the other operand nor the result has. Two operands are then multiplied as batches of matrices, and the
/// results are placed in the output.
#[derive(Debug)]
pub struct Plan {
    /// The layout of each operand.
    pub operands: SmallVec<[Operand; 2]>,
    /// Batches, rows, summed elements and columns of the matrix product.
    pub product: Option<[usize; 4]>,
    /// The shape of the output.
    pub shape: Shape,
    /// The position in the output of each result, in the results' order.
    pub to: Axes,
}

/// The layout in which an operand's elements are read.
#[derive(Debug)]
pub struct Operand {
    /// The axes that the packed operand has.
    pub kept: Axes,
    /// The axes that are summed over.
    pub summed: Axes,
}

impl Plan {
    /// Plans an equation for operands of these shapes.
    pub fn new(equation: &Equation, shapes: &[&Shape]) -> Result<Plan> {
        let mut sizes = Sizes::default();
        let mut operands: SmallVec<[Vec<Label>; 2]> = SmallVec::new();
        for (shape, term) in shapes.iter().zip(&equation.inputs) {
            let labels = labels(term, shape.rank())?;
            for (&label, &size) in labels.iter().zip(shape.iter()) {
                let expected = sizes.entry(label).or_insert(size);
                let broadcasts = label < 0 && (*expected == 1 || size == 1);
                if *expected != size && !broadcasts {
                    invalid!(
                        "Expected dimension {expected} at axis of the input shaped {shape} but got dimension {size}"
                    );
                }
                if broadcasts {
                    *expected = if *expected == 1 { size } else { *expected };
                }
            }
            operands.push(labels);
        }
        let output = output_labels(equation, &sizes)?;
        let unique = distinct(&output);
        let layout = |i: usize, kept: &[Label], summed: &[Label]| {
            let steps = steps(shapes[i], &operands[i]);
            let axes = |labels: &[Label]| -> Axes {
                labels.iter().map(|l| (sizes[l], steps.get(l).copied().unwrap_or(0))).collect()
            };
            Operand { kept: axes(kept), summed: axes(summed) }
        };
        let first = distinct(&operands[0]);
        let (layouts, product, order) = match operands.get(1).map(|o| distinct(o)) {
            None => {
                let summed: Vec<Label> = first.iter().copied().filter(|l| !unique.contains(l)).collect();
                (SmallVec::from_iter([layout(0, &unique, &summed)]), None, unique)
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
                let layouts = SmallVec::from_iter([
                    layout(0, &left, &pick(&first, &second, false, false)),
                    layout(1, &right, &pick(&second, &first, false, false)),
                ]);
                let count = |labels: &[Label]| labels.iter().map(|l| sizes[l]).product::<usize>();
                let product = [count(&batch), count(&rows), count(&inner), count(&columns)];
                (layouts, Some(product), [&batch[..], &rows, &columns].concat())
            }
        };
        let dims: Vec<usize> = output.iter().map(|l| sizes[l]).collect();
        let shape = Shape::new(&dims)?;
        let strides = shape.strides();
        // A repeated label of the output fills a diagonal.
        let step = |label: &Label| -> usize {
            output.iter().zip(&strides).filter(|(l, _)| *l == label).map(|(_, s)| s).sum()
        };
        let to = order.iter().map(|l| (sizes[l], step(l))).collect();
        Ok(Plan { operands: layouts, product, shape, to })
    }

    /// Returns the number of results; all other elements of the output are zeros.
    pub fn results(&self) -> usize {
        self.to.iter().map(|axis| axis.0).product()
    }
}

/// Returns the labels without repetitions.
fn distinct(labels: &[Label]) -> Vec<Label> {
    let mut out: Vec<Label> = Vec::new();
    for label in labels {
        if !out.contains(label) {
            out.push(*label);
        }
    }
    out
}

/// Returns the labels of the output.
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

/// Returns the elements from one index of each label to the next. A repeated label follows a diagonal; an axis of
/// size 1 broadcasts, so its step is 0.
fn steps(shape: &Shape, labels: &[Label]) -> FxHashMap<Label, usize> {
    let mut steps = FxHashMap::default();
    for ((&label, &stride), &size) in labels.iter().zip(&shape.strides()).zip(shape.iter()) {
        *steps.entry(label).or_insert(0) += if size == 1 { 0 } else { stride };
    }
    steps
}

/// Returns the elements of an operand in the order of its kept axes, each summed over the other axes.
fn packed<W: Arithmetic>(values: &[W], operand: &Operand) -> Vec<W> {
    let mut out = Vec::new();
    walk(&operand.kept, 0, &mut |start| {
        let mut sum = W::ZERO;
        walk(&operand.summed, start, &mut |at| sum = sum.plus(values[at]));
        out.push(sum);
    });
    out
}

/// Calls `visit` with each position of a box of axes (size and step); the last axis varies fastest.
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
        return Err(Error::internal("an einsum has fewer results than output elements"));
    }
    let mut out = Tensor::zeros(T::Wide::DTYPE, plan.shape)?;
    let elements = out.values_mut::<T::Wide>()?;
    let mut next = values.into_iter();
    walk(&plan.to, 0, &mut |at| {
        if let Some(value) = next.next() {
            elements[at] = value;
        }
    });
    narrowed::<T>(out)
}
