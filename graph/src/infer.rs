//! Shape inference: the shapes of outputs as far as they are known before a step runs.

mod values;

pub(crate) use values::integers;

use crate::attr::FromAttr;
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Op;
use crate::shape::PartialShape;
use crate::tensor::Tensor;
use crate::topology::Topology;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The inferred shapes of a graph's outputs.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    outputs: Vec<SmallVec<[PartialShape; 1]>>,
    /// The dtype and shape of the variable behind a resource handle.
    handles: FxHashMap<Output, (DType, PartialShape)>,
    /// Values of outputs that a pass has derived; `None` for outputs whose values must not be derived.
    known_values: FxHashMap<Output, Option<Tensor>>,
}

impl Shapes {
    /// Infers the shapes of all outputs of a graph.
    ///
    /// # Errors
    /// The error of the first contradiction between shapes, with the node's name.
    pub fn infer(graph: &Graph) -> Result<Shapes> {
        let mut shapes = Shapes { outputs: vec![SmallVec::new(); graph.len()], ..Shapes::default() };
        for id in Topology::new(graph).order(graph)? {
            shapes.infer_node(graph, id)?;
        }
        Ok(shapes)
    }

    /// Infers the shapes of one node's outputs; its inputs must have been inferred already.
    pub(crate) fn infer_node(&mut self, graph: &Graph, id: NodeId) -> Result<()> {
        if self.outputs.len() <= id.index() {
            self.outputs.resize(id.index() + 1, SmallVec::new());
        }
        let node = graph.node(id);
        let count = node.output_types()?.len();
        let mut infer = Infer {
            graph,
            shapes: self,
            node,
            inputs: graph.inputs(id),
            outputs: SmallVec::from_elem(PartialShape::unknown(), count),
            handles: SmallVec::new(),
        };
        (node.op.def.infer)(&mut infer).map_err(|e| e.at_node(&node.name))?;
        let Infer { outputs, handles, .. } = infer;
        self.outputs[id.index()] = outputs;
        for (index, handle) in handles {
            self.handles.insert(Output { node: id, index }, handle);
        }
        Ok(())
    }

    /// Replaces the inferred shape of an output; the new shape is more precise.
    pub(crate) fn set(&mut self, output: Output, shape: PartialShape) {
        let of_node = self.outputs.get_mut(output.node.index());
        if let Some(known) = of_node.and_then(|o| o.get_mut(output.index as usize)) {
            *known = shape;
        }
    }

    /// Records the value of an output; the output may belong to a node that is not in the graph yet.
    pub(crate) fn set_value(&mut self, output: Output, value: Tensor) {
        let (node, index) = (output.node.index(), output.index as usize);
        if self.outputs.len() <= node {
            self.outputs.resize(node + 1, SmallVec::new());
        }
        if self.outputs[node].len() <= index {
            self.outputs[node].resize(index + 1, PartialShape::unknown());
        }
        self.outputs[node][index] = PartialShape::from(value.shape());
        self.known_values.insert(output, Some(value));
    }

    /// Marks the value of an output as unknown, regardless of the node that computes it.
    pub(crate) fn hide_value(&mut self, output: Output) {
        self.known_values.insert(output, None);
    }

    /// Returns the inferred shape of an output.
    pub fn get(&self, output: Output) -> PartialShape {
        let of_node = self.outputs.get(output.node.index());
        of_node.and_then(|o| o.get(output.index as usize)).cloned().unwrap_or_default()
    }

    /// Returns the value of an output, if it is a constant or follows from known shapes.
    pub fn value(&self, graph: &Graph, output: Output) -> Option<Tensor> {
        values::constant(graph, self, output)
    }

    /// Returns the partial shape whose sizes are the elements of `output`, a vector; unknown elements become unknown
    /// sizes.
    pub fn value_as_shape(&self, graph: &Graph, output: Output) -> Result<PartialShape> {
        values::shape(graph, self, output)
    }

    /// Returns the dtype and shape of the variable behind a handle, if known.
    pub fn handle(&self, output: Output) -> Option<&(DType, PartialShape)> {
        self.handles.get(&output)
    }
}

/// The argument of an op's inference function: a node with the shapes of its inputs, and the shapes of its outputs that
/// the function sets.
#[derive(Debug)]
pub struct Infer<'a> {
    graph: &'a Graph,
    shapes: &'a Shapes,
    node: &'a Node,
    inputs: SmallVec<[Output; 4]>,
    outputs: SmallVec<[PartialShape; 1]>,
    handles: SmallVec<[(u32, (DType, PartialShape)); 1]>,
}

impl Infer<'_> {
    /// Returns the node.
    pub fn node(&self) -> &Node {
        self.node
    }

    /// Returns the node's op.
    pub fn op(&self) -> &'static Op {
        self.node.op
    }

    /// Returns the value of an attribute, or its default.
    pub fn attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.node.op.attr(&self.node.attrs, name)
    }

    /// Returns the number of data inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Returns the number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// Returns the shape of input `i`.
    pub fn input(&self, i: usize) -> PartialShape {
        self.inputs.get(i).map(|&o| self.shapes.get(o)).unwrap_or_default()
    }

    /// Returns the shape of input `i`, which must have this rank or an unknown rank.
    pub fn input_of_rank(&self, i: usize, rank: usize) -> Result<PartialShape> {
        self.input(i).with_rank(rank)
    }

    /// Sets the shape of output `i`.
    pub fn set(&mut self, i: usize, shape: impl Into<PartialShape>) {
        self.outputs[i] = shape.into();
    }

    /// Sets the shape of every output.
    pub fn set_all(&mut self, shape: PartialShape) {
        self.outputs.fill(shape);
    }

    /// Returns the dtype and shape of the variable behind the handle at input `i`.
    pub fn handle(&self, i: usize) -> Option<(DType, PartialShape)> {
        self.shapes.handle(*self.inputs.get(i)?).cloned()
    }

    /// Sets the dtype and shape of the variable behind the handle at output `i`.
    pub fn set_handle(&mut self, i: usize, dtype: DType, shape: PartialShape) {
        self.handles.push((i as u32, (dtype, shape)));
    }

    /// Returns the value of input `i`, if it is a constant or follows from known shapes.
    pub fn value(&self, i: usize) -> Option<Tensor> {
        self.shapes.value(self.graph, *self.inputs.get(i)?)
    }

    /// Returns the partial shape whose sizes are the elements of input `i`, a vector; unknown elements become unknown
    /// sizes.
    pub fn value_as_shape(&self, i: usize) -> Result<PartialShape> {
        match self.inputs.get(i) {
            Some(&o) => self.shapes.value_as_shape(self.graph, o),
            None => Ok(PartialShape::unknown()),
        }
    }
}
