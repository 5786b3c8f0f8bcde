//! Shape inference: what is known of each output's shape before anything runs.

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

/// The shapes of a graph's outputs, as far as they are known.
#[derive(Clone, Debug, Default)]
pub struct Shapes {
    outputs: Vec<SmallVec<[PartialShape; 1]>>,
    /// Dtype and shape of the variable behind a resource handle.
    handles: FxHashMap<Output, (DType, PartialShape)>,
    /// Values that somebody has found out, or that must not be looked for.
    told: FxHashMap<Output, Option<Tensor>>,
}

impl Shapes {
    /// Infers the shapes of a whole graph.
    ///
    /// # Errors
    /// The first contradiction, with the node's name.
    pub fn infer(graph: &Graph) -> Result<Shapes> {
        let mut shapes = Shapes { outputs: vec![SmallVec::new(); graph.len()], ..Shapes::default() };
        for id in Topology::new(graph).order(graph)? {
            shapes.infer_node(graph, id)?;
        }
        Ok(shapes)
    }

    /// Infers one node's outputs from its inputs', which must be there already.
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

    /// Says what is known of an output's shape beyond what its node tells.
    pub(crate) fn set(&mut self, output: Output, shape: PartialShape) {
        let of_node = self.outputs.get_mut(output.node.index());
        if let Some(known) = of_node.and_then(|o| o.get_mut(output.index as usize)) {
            *known = shape;
        }
    }

    /// Says what an output's value is, which need not be one of the graph.
    pub(crate) fn tell(&mut self, output: Output, value: Tensor) {
        let (node, index) = (output.node.index(), output.index as usize);
        if self.outputs.len() <= node {
            self.outputs.resize(node + 1, SmallVec::new());
        }
        if self.outputs[node].len() <= index {
            self.outputs[node].resize(index + 1, PartialShape::unknown());
        }
        self.outputs[node][index] = PartialShape::from(value.shape());
        self.told.insert(output, Some(value));
    }

    /// Says that nothing is to be known of an output, whatever makes it.
    pub(crate) fn hide(&mut self, output: Output) {
        self.told.insert(output, None);
    }

    /// What is known of an output's shape.
    pub fn get(&self, output: Output) -> PartialShape {
        let of_node = self.outputs.get(output.node.index());
        of_node.and_then(|o| o.get(output.index as usize)).cloned().unwrap_or_default()
    }

    /// The value of an output, where it is a constant, or follows from known shapes.
    pub fn value(&self, graph: &Graph, output: Output) -> Option<Tensor> {
        values::constant(graph, self, output)
    }

    /// An output, a vector of sizes, as the shape it describes; unknown sizes stay open.
    pub fn value_as_shape(&self, graph: &Graph, output: Output) -> Result<PartialShape> {
        values::shape(graph, self, output)
    }

    /// What is known of the variable behind a handle.
    pub fn handle(&self, output: Output) -> Option<&(DType, PartialShape)> {
        self.handles.get(&output)
    }
}

/// One node in the hands of its op's inference.
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
    pub fn node(&self) -> &Node {
        self.node
    }

    pub fn op(&self) -> &'static Op {
        self.node.op
    }

    pub fn attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.node.op.attr(&self.node.attrs, name)
    }

    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    pub fn input(&self, i: usize) -> PartialShape {
        self.inputs.get(i).map(|&o| self.shapes.get(o)).unwrap_or_default()
    }

    /// Input `i`, which must be of this rank or of unknown rank.
    pub fn input_of_rank(&self, i: usize, rank: usize) -> Result<PartialShape> {
        self.input(i).with_rank(rank)
    }

    pub fn set(&mut self, i: usize, shape: impl Into<PartialShape>) {
        self.outputs[i] = shape.into();
    }

    /// Sets every output to this shape.
    pub fn set_all(&mut self, shape: PartialShape) {
        self.outputs.fill(shape);
    }

    /// The variable behind handle input `i`.
    pub fn handle(&self, i: usize) -> Option<(DType, PartialShape)> {
        self.shapes.handle(*self.inputs.get(i)?).cloned()
    }

    pub fn set_handle(&mut self, i: usize, dtype: DType, shape: PartialShape) {
        self.handles.push((i as u32, (dtype, shape)));
    }

    /// The value of input `i`, where it is a constant, or follows from known shapes.
    pub fn value(&self, i: usize) -> Option<Tensor> {
        self.shapes.value(self.graph, *self.inputs.get(i)?)
    }

    /// Input `i`, a vector of sizes, as the shape it describes; unknown sizes stay open.
    pub fn value_as_shape(&self, i: usize) -> Result<PartialShape> {
        match self.inputs.get(i) {
            Some(&o) => self.shapes.value_as_shape(self.graph, o),
            None => Ok(PartialShape::unknown()),
        }
    }
}
