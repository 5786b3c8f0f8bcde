//! Values that are known before anything runs: constants, and integers behind short chains of shape arithmetic.

use super::Shapes;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, Output};
use crate::node::Node;
use crate::ops::slice::StridedSliceAttrs;
use crate::shape::{Dim, MAX_RANK, PartialShape};
use crate::tensor::Tensor;

/// How far back values are followed.
const DEPTH: usize = 8;

/// How many nodes one question may look at, whatever the graph.
const NODES: usize = 512;

/// Vectors longer than this are no shapes.
const LENGTH: usize = 4096;

pub(super) fn constant(graph: &Graph, shapes: &Shapes, output: Output) -> Option<Tensor> {
    let mut search = Search { graph, shapes, budget: NODES };
    if let Some(value) = search.plain_constant(output) {
        return Some(value);
    }
    let known = search.known(output, 0)?;
    let values: Vec<i64> = known.values.iter().copied().collect::<Option<_>>()?;
    let value = integers(graph.output_type(output).ok()?.dtype, values)?;
    if known.scalar { value.reshaped(crate::shape::Shape::scalar()).ok() } else { Some(value) }
}

pub(super) fn shape(graph: &Graph, shapes: &Shapes, output: Output) -> Result<PartialShape> {
    let mut search = Search { graph, shapes, budget: NODES };
    let Some(known) = search.known(output, 0) else {
        return Ok(match shapes.get(output).rank() {
            Some(rank) if rank > 1 => crate::invalid!("Shape must be rank 1 but is rank {rank}"),
            _ => PartialShape::unknown(),
        });
    };
    match (known.scalar, known.values.as_slice()) {
        // A scalar stands for a shape only where the op takes one for any shape, written -1, or for a vector.
        (true, [Some(-1) | None]) => Ok(PartialShape::unknown()),
        _ => {
            let dims: Vec<i64> = known.values.iter().map(|v| v.unwrap_or(-1)).collect();
            PartialShape::from_i64(&dims)
        }
    }
}

/// Values as an `int32` or `int64` vector; `None` for other types, or if one does not fit.
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

/// An integer scalar or vector of which some elements are known.
struct Known {
    scalar: bool,
    values: Vec<Option<i64>>,
}

impl Known {
    fn of(value: &Tensor) -> Option<Known> {
        if value.shape().rank() > 1 || value.num_elements() > LENGTH {
            return None;
        }
        let values = value.to_i64s().ok()?.into_iter().map(Some).collect();
        Some(Known { scalar: value.shape().rank() == 0, values })
    }

    fn scalar(value: Option<i64>) -> Known {
        Known { scalar: true, values: vec![value] }
    }

    fn vector(values: Vec<Option<i64>>) -> Known {
        Known { scalar: false, values }
    }

    fn sizes(dims: &[Dim]) -> Known {
        Known::vector(dims.iter().map(|d| d.and_then(|d| i64::try_from(d).ok())).collect())
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
    /// The value of a constant of any type, also behind identities.
    fn plain_constant(&self, mut output: Output) -> Option<Tensor> {
        for _ in 0..DEPTH {
            if let Some(told) = self.shapes.told.get(&output) {
                return told.clone();
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

    /// What is known of an integer scalar or vector. The depth bounds the recursion, the budget its breadth.
    fn known(&mut self, output: Output, depth: usize) -> Option<Known> {
        self.budget = self.budget.checked_sub(1)?;
        let followed = if depth < DEPTH { self.follow(output, depth) } else { None };
        followed.or_else(|| self.open(output))
    }

    /// An integer of which only the shape is known.
    fn open(&self, output: Output) -> Option<Known> {
        match *self.shapes.get(output).dims()? {
            [] => Some(Known::scalar(None)),
            [Some(length)] if length <= MAX_RANK => Some(Known::vector(vec![None; length])),
            _ => None,
        }
    }

    fn follow(&mut self, output: Output, depth: usize) -> Option<Known> {
        if let Some(told) = self.shapes.told.get(&output) {
            return Known::of(told.as_ref()?);
        }
        let graph = self.graph;
        let node = graph.node(output.node);
        let input = |i| graph.input(output.node, i);
        match node.op.name() {
            "Const" => Known::of(&node.attr::<Tensor>("value").ok()?),
            "Identity" => self.known(input(0)?, depth + 1),
            "Cast" => {
                let kept = |attr| matches!(node.attr(attr), Ok(DType::Int32 | DType::Int64));
                if kept("SrcT") && kept("DstT") { self.known(input(0)?, depth + 1) } else { None }
            }
            "Shape" => Some(Known::sizes(self.shapes.get(input(0)?).dims()?)),
            "ShapeN" => Some(Known::sizes(self.shapes.get(input(output.index as usize)?).dims()?)),
            "Size" => {
                let count = self.shapes.get(input(0)?).num_elements()?;
                Some(Known::scalar(i64::try_from(count).ok()))
            }
            "Rank" => Some(Known::scalar(i64::try_from(self.shapes.get(input(0)?).rank()?).ok())),
            "Pack" => self.pack(output, depth),
            "ConcatV2" => self.concat(output, depth),
            "ExpandDims" => {
                let of = self.known(input(0)?, depth + 1)?;
                if of.scalar { Some(Known::vector(of.values)) } else { None }
            }
            "Squeeze" => {
                let of = self.known(input(0)?, depth + 1)?;
                if of.values.len() == 1 { Some(Known::scalar(of.values[0])) } else { None }
            }
            "Slice" => {
                let of = self.known(input(0)?, depth + 1).filter(|k| !k.scalar)?;
                let begin = *self.known(input(1)?, depth + 1)?.all()?.first()?;
                let size = *self.known(input(2)?, depth + 1)?.all()?.first()?;
                let begin = usize::try_from(begin).ok()?;
                let rest = of.values.get(begin..)?;
                let size = if size == -1 { rest.len() } else { usize::try_from(size).ok()? };
                Some(Known::vector(rest.get(..size)?.to_vec()))
            }
            "StridedSlice" => {
                let of = self.known(input(0)?, depth + 1).filter(|k| !k.scalar)?;
                let mut indices = Vec::new();
                for i in 1..4 {
                    indices.push(self.known(input(i)?, depth + 1)?.all()?);
                }
                strided_slice(node, &of.values, &indices)
            }
            _ => None,
        }
    }

    fn pack(&mut self, output: Output, depth: usize) -> Option<Known> {
        let inputs = self.graph.inputs(output.node);
        if inputs.len() > LENGTH || inputs.iter().any(|&i| self.shapes.get(i).rank() != Some(0)) {
            return None;
        }
        let values = inputs.iter().map(|&i| self.known(i, depth + 1).and_then(|k| *k.values.first()?));
        Some(Known::vector(values.collect()))
    }

    fn concat(&mut self, output: Output, depth: usize) -> Option<Known> {
        let inputs = self.graph.inputs(output.node);
        let (_, parts) = inputs.split_last()?;
        let mut values = Vec::new();
        for &part in parts {
            let part = self.known(part, depth + 1).filter(|k| !k.scalar)?;
            values.extend(part.values);
            if values.len() > LENGTH {
                return None;
            }
        }
        Some(Known::vector(values))
    }
}

fn strided_slice(node: &Node, of: &[Option<i64>], indices: &[Vec<i64>]) -> Option<Known> {
    let attrs = StridedSliceAttrs::of(node).ok()?;
    let [begin, end, strides] = indices else { return None };
    let plan = attrs.plan(&[of.len()], begin, end, strides).ok()?;
    let &[axis] = plan.axes.as_slice() else { return None };
    let picked = (0..axis.size as i64).map(|i| of.get(usize::try_from(axis.begin + i * axis.stride).ok()?));
    let values: Vec<Option<i64>> = picked.map(|v| v.copied()).collect::<Option<_>>()?;
    match plan.shape.as_slice() {
        [] => Some(Known::scalar(*values.first()?)),
        [_] => Some(Known::vector(values)),
        _ => None,
    }
}
