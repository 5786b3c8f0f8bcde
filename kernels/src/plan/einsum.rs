//! The plan of an einsum: the axes of its operands, of the matrix product and of the output.

use device::kernel::KernelInit;
use device::{Result, invalid};
use graph::Shape;
use graph::ops::einsum::Equation;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

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

/// The label of an axis: a character of the equation. The axes in the ellipsis have the labels -1 for the last axis, -2
/// for the axis before it, and so on.
type Label = i32;

/// The size of the axis of each label.
type Sizes = FxHashMap<Label, usize>;

/// Returns the labels of the axes of an operand of rank `rank`; `term` is the operand's term in the equation.
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

/// Axes from the outermost to the innermost, each with its size and its stride in elements.
pub type Axes = SmallVec<[(usize, usize); 6]>;

/// The plan of an einsum for operands of given shapes. Each operand is reordered, and summed over the labels that occur
/// neither in the other operand nor in the result. Two operands are then multiplied as batches of matrices, and the
/// resulting elements are stored in the output.
#[derive(Debug)]
pub struct EinsumPlan {
    /// For each operand, the layout in which its elements are read.
    pub operands: SmallVec<[OperandAxes; 2]>,
    /// The numbers of batches, rows, summed elements and columns of the matrix product; `None` for a single operand.
    pub product: Option<[usize; 4]>,
    /// The shape of the output.
    pub shape: Shape,
    /// The axes of the matrix product or of the single operand, with the strides at which its elements are stored in
    /// the output.
    pub to: Axes,
}

/// The layout in which an operand's elements are read.
#[derive(Debug)]
pub struct OperandAxes {
    /// The axes of the operand that are kept, in the order of the packed operand.
    pub kept: Axes,
    /// The axes of the operand that are summed over.
    pub summed: Axes,
}

impl EinsumPlan {
    /// Plans the einsum `equation` for operands of the given shapes.
    pub fn new(equation: &Equation, shapes: &[&Shape]) -> Result<EinsumPlan> {
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
            OperandAxes { kept: axes(kept), summed: axes(summed) }
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
        // If the output repeats a label, the elements are stored on a diagonal, whose stride is the sum of the axes'
        // strides.
        let step = |label: &Label| -> usize {
            output.iter().zip(&strides).filter(|(l, _)| *l == label).map(|(_, s)| s).sum()
        };
        let to = order.iter().map(|l| (sizes[l], step(l))).collect();
        Ok(EinsumPlan { operands: layouts, product, shape, to })
    }

    /// Returns the number of elements that are stored in the output; the remaining elements of the output are zeros.
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

/// Returns the stride of each label in elements. The stride of a repeated label follows a diagonal; an axis of size 1
/// broadcasts, so its stride is 0.
fn steps(shape: &Shape, labels: &[Label]) -> FxHashMap<Label, usize> {
    let mut steps = FxHashMap::default();
    for ((&label, &stride), &size) in labels.iter().zip(&shape.strides()).zip(shape.iter()) {
        *steps.entry(label).or_insert(0) += if size == 1 { 0 } else { stride };
    }
    steps
}
