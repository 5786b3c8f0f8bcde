//! Derivation of values before a step runs: values of constants, and integers computed by short chains of shape
//! arithmetic.

use super::Shapes;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Output};
use crate::node::Node;
use crate::ops::slice::StridedSliceAttrs;
use crate::shape::{Dim, MAX_RANK, PartialShape};
use crate::tensor::Tensor;

/// The largest number of nodes on a path that the search follows from an output back towards constants and known
/// shapes.
const MAX_DEPTH: usize = 8;

/// The largest number of nodes visited to derive one value.
const MAX_NODES: usize = 512;

/// The longest vector that is treated as a shape or a list of indices.
const MAX_LENGTH: usize = 4096;

pub(super) fn constant(graph: &Graph, shapes: &Shapes, output: Output) -> Option<Tensor> {
    let mut search = Search { graph, shapes, budget: MAX_NODES };
    if let Some(value) = search.plain_constant(output) {
        return Some(value);
    }
    let known = search.partial_ints(output, 0)?;
    let values: Vec<i64> = known.values.iter().copied().collect::<Option<_>>()?;
    let value = integers(graph.output_type(output).ok()?.dtype, values)?;
    if known.scalar { value.reshaped(crate::shape::Shape::scalar()).ok() } else { Some(value) }
}

pub(super) fn shape(graph: &Graph, shapes: &Shapes, output: Output) -> Result<PartialShape> {
    let mut search = Search { graph, shapes, budget: MAX_NODES };
    let Some(known) = search.partial_ints(output, 0) else {
        return Ok(match shapes.get(output).rank() {
            Some(rank) if rank > 1 => crate::invalid!("Shape must be rank 1 but is rank {rank}"),
            _ => PartialShape::unknown(),
        });
    };
    match (known.scalar, known.values.as_slice()) {
        // The scalar -1 means any shape. An unknown scalar may be -1, or may stand for a vector of one size, so the
        // shape is unknown.
        (true, [Some(-1) | None]) => Ok(PartialShape::unknown()),
        _ => {
            let dims: Vec<i64> = known.values.iter().map(|v| v.unwrap_or(-1)).collect();
            PartialShape::from_i64(&dims)
        }
    }
}

/// Returns the values as an `int32` or `int64` vector; `None` for other types, or if a value does not fit.
pub(crate) fn integers(dtype: DType, values: impl IntoIterator<Item = i64>) -> Option<Tensor> {
    match dtype {
        DType::Int64 => Tensor::vector(&values.into_iter().collect::<Vec<_>>()).ok(),
        DType::Int32 => {
            let narrow: Option<Vec<i32>> = values.into_iter().map(|v| v.try_into().ok()).collect();
            Tensor::vector(&narrow?).ok()
        }
        _ => None,
    }
}

/// An integer scalar or vector with some known elements.
struct PartialInts {
    scalar: bool,
    values: Vec<Option<i64>>,
}

impl PartialInts {
    fn of(value: &Tensor) -> Option<PartialInts> {
        if value.shape().rank() > 1 || value.num_elements() > MAX_LENGTH {
            return None;
        }
        let values = value.to_i64s().ok()?.into_iter().map(Some).collect();
        Some(PartialInts { scalar: value.shape().rank() == 0, values })
    }

    fn scalar(value: Option<i64>) -> PartialInts {
        PartialInts { scalar: true, values: vec![value] }
    }

    fn vector(values: Vec<Option<i64>>) -> PartialInts {
        PartialInts { scalar: false, values }
    }

    fn sizes(dims: &[Dim]) -> PartialInts {
        PartialInts::vector(dims.iter().map(|d| d.and_then(|d| i64::try_from(d).ok())).collect())
    }

    fn all(&self) -> Option<Vec<i64>> {
        self.values.iter().copied().collect()
    }
}

struct Search<'a> {
    graph: &'a Graph,
    shapes: &'a Shapes,
    budget: usize,
}

impl Search<'_> {
    /// Returns the value of an output, of any element type, if the output is a constant or leads to a constant through
    /// Identity nodes only.
    fn plain_constant(&self, mut output: Output) -> Option<Tensor> {
        for _ in 0..MAX_DEPTH {
            if let Some(known) = self.shapes.known_values.get(&output) {
                return known.clone();
            }
            let node = self.graph.node(output.node);
            match node.op.name() {
                "Const" => return node.attr("value").ok(),
                "Identity" => output = self.graph.input(output.node, 0)?,
                _ => return None,
            }
        }
        None
    }

    /// Returns the known elements of an integer scalar or vector. The length of the path to the output is `depth`;
    /// `budget` limits the number of visited nodes.
    fn partial_ints(&mut self, output: Output, depth: usize) -> Option<PartialInts> {
        self.budget = self.budget.checked_sub(1)?;
        let followed = if depth < MAX_DEPTH { self.follow(output, depth) } else { None };
        followed.or_else(|| self.unknown_elements(output))
    }

    /// Returns an integer scalar or vector in which every element is unknown, if the shape of the output is known.
    fn unknown_elements(&self, output: Output) -> Option<PartialInts> {
        match *self.shapes.get(output).dims()? {
            [] => Some(PartialInts::scalar(None)),
            [Some(length)] if length <= MAX_RANK => Some(PartialInts::vector(vec![None; length])),
            _ => None,
        }
    }

    /// Derives the known elements of an output from the inputs of its node.
    fn follow(&mut self, output: Output, depth: usize) -> Option<PartialInts> {
        if let Some(known) = self.shapes.known_values.get(&output) {
            return PartialInts::of(known.as_ref()?);
        }
        let graph = self.graph;
        let node = graph.node(output.node);
        let input = |i| graph.input(output.node, i);
        match node.op.name() {
            "Const" => PartialInts::of(&node.attr::<Tensor>("value").ok()?),
            "Identity" => self.partial_ints(input(0)?, depth + 1),
            "Cast" => {
                let kept = |attr| matches!(node.attr(attr), Ok(DType::Int32 | DType::Int64));
                if kept("SrcT") && kept("DstT") { self.partial_ints(input(0)?, depth + 1) } else { None }
            }
            "Shape" => Some(PartialInts::sizes(self.shapes.get(input(0)?).dims()?)),
            "ShapeN" => Some(PartialInts::sizes(self.shapes.get(input(output.index as usize)?).dims()?)),
            "Size" => {
                let count = self.shapes.get(input(0)?).num_elements()?;
                Some(PartialInts::scalar(i64::try_from(count).ok()))
            }
            "Rank" => Some(PartialInts::scalar(i64::try_from(self.shapes.get(input(0)?).rank()?).ok())),
            "Pack" => self.pack(output, depth),
            "ConcatV2" => self.concat(output, depth),
            "ExpandDims" => {
                let of = self.partial_ints(input(0)?, depth + 1)?;
                if of.scalar { Some(PartialInts::vector(of.values)) } else { None }
            }
            "Squeeze" => {
                let of = self.partial_ints(input(0)?, depth + 1)?;
                if of.values.len() == 1 { Some(PartialInts::scalar(of.values[0])) } else { None }
            }
            "Slice" => {
                let of = self.partial_ints(input(0)?, depth + 1).filter(|k| !k.scalar)?;
                let begin = *self.partial_ints(input(1)?, depth + 1)?.all()?.first()?;
                let size = *self.partial_ints(input(2)?, depth + 1)?.all()?.first()?;
                let begin = usize::try_from(begin).ok()?;
                let rest = of.values.get(begin..)?;
                let size = if size == -1 { rest.len() } else { usize::try_from(size).ok()? };
                Some(PartialInts::vector(rest.get(..size)?.to_vec()))
            }
            "StridedSlice" => {
                let of = self.partial_ints(input(0)?, depth + 1).filter(|k| !k.scalar)?;
                let mut indices = Vec::new();
                for i in 1..4 {
                    indices.push(self.partial_ints(input(i)?, depth + 1)?.all()?);
                }
                strided_slice(node, &of.values, &indices)
            }
            _ => None,
        }
    }

    fn pack(&mut self, output: Output, depth: usize) -> Option<PartialInts> {
        let inputs = self.graph.inputs(output.node);
        if inputs.len() > MAX_LENGTH || inputs.iter().any(|&i| self.shapes.get(i).rank() != Some(0)) {
            return None;
        }
        let values =
            inputs.iter().map(|&i| self.partial_ints(i, depth + 1).and_then(|k| *k.values.first()?));
        Some(PartialInts::vector(values.collect()))
    }

    fn concat(&mut self, output: Output, depth: usize) -> Option<PartialInts> {
        let inputs = self.graph.inputs(output.node);
        let (_, parts) = inputs.split_last()?;
        let mut values = Vec::new();
        for &part in parts {
            let part = self.partial_ints(part, depth + 1).filter(|k| !k.scalar)?;
            values.extend(part.values);
            if values.len() > MAX_LENGTH {
                return None;
            }
        }
        Some(PartialInts::vector(values))
    }
}

fn strided_slice(node: &Node, of: &[Option<i64>], indices: &[Vec<i64>]) -> Option<PartialInts> {
    let attrs = StridedSliceAttrs::of(node).ok()?;
    let [begin, end, strides] = indices else { return None };
    let plan = attrs.plan(&[of.len()], begin, end, strides).ok()?;
    let &[axis] = plan.axes.as_slice() else { return None };
    let picked = (0..axis.size as i64).map(|i| of.get(usize::try_from(axis.begin + i * axis.stride).ok()?));
    let values: Vec<Option<i64>> = picked.map(|v| v.copied()).collect::<Option<_>>()?;
    match plan.shape.as_slice() {
        [] => Some(PartialInts::scalar(*values.first()?)),
        [_] => Some(PartialInts::vector(values)),
        _ => None,
    }
}
