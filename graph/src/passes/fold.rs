//! Constant folding: nodes whose inputs are all constants are computed once, when the graph is prepared.

use super::{checked, is_placeholder};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::infer::Shapes;
use crate::node::Node;
use crate::ops::{self, Evaluate, Op, Role};
use crate::tensor::Tensor;
use crate::topology::{Producer, Topology};
use rustc_hash::{FxHashMap, FxHashSet};

/// Limits of constant folding, and the nodes that the pass must not change.
#[derive(Clone, Debug)]
pub struct FoldOptions<'a> {
    /// Nodes that are fed, fetched or otherwise referred to from outside the graph; the pass does not change them.
    pub keep: &'a [NodeId],
    /// The number of bytes by which the outputs of a folded node may exceed its inputs.
    pub growth: usize,
    /// The limit on the total size of all folded values, in bytes.
    pub total: usize,
}

impl FoldOptions<'_> {
    /// Default options: an empty `keep`; 10 MiB of growth per node, 256 MiB in total.
    pub const DEFAULT: FoldOptions<'static> = FoldOptions { keep: &[], growth: 10 << 20, total: 256 << 20 };
}

/// Replaces stateless nodes whose inputs are all constant by constants.
///
/// A folded node keeps its name, device and colocation. Its constant gets the control inputs of the node and of the
/// constants folded into it, so that a value inside a loop stays in its loop frame. The second and further outputs
/// become nodes named `name/output_1` and so on. A node that fails to evaluate, or that has no kernel, stays in the
/// graph and fails or runs in its step. Constants without readers stay as well; [`prune`](super::prune) removes them.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; `Unimplemented` if the op table has no `Const`.
pub fn fold(graph: &Graph, kernels: &dyn Evaluate, options: &FoldOptions<'_>) -> Result<Graph> {
    let Some(constant) = ops::lookup("Const") else {
        return Err(Error::unimplemented("folding needs the op Const"));
    };
    let topology = Topology::new(graph);
    let mut folding = Folding {
        graph,
        topology: &topology,
        constant,
        keep: options.keep.iter().copied().collect(),
        values: FxHashMap::default(),
        left: options.total,
    };
    for id in topology.order(graph)? {
        folding.visit(id, kernels, options.growth)?;
    }
    folding.rebuild()
}

/// The state of one folding pass over a graph.
struct Folding<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    constant: &'static Op,
    keep: FxHashSet<NodeId>,
    values: FxHashMap<NodeId, Folded>,
    left: usize,
}

/// The values of a constant node.
struct Folded {
    outputs: Vec<Tensor>,
    /// Control inputs of the constant: those of the node and of all constants folded into it.
    control: Vec<NodeId>,
    /// True if the constant was computed and is to replace the node; false for a node that is a `Const` already.
    computed: bool,
}

/// The largest number of control inputs of a folded constant. A limit is needed because each folded constant gets the
/// control inputs of all its inputs.
const MAX_CONTROL: usize = 64;

impl Folding<'_> {
    /// Records the node's values if it is a constant, or can be computed from constants within the limits.
    fn visit(&mut self, id: NodeId, kernels: &dyn Evaluate, growth: usize) -> Result<()> {
        let node = self.graph.node(id);
        if self.keep.contains(&id) {
            return Ok(());
        }
        let producers = self.topology.producers(id);
        let mut control: Vec<NodeId> = producers.iter().filter(|p| p.is_control()).map(|p| p.node).collect();
        if std::ptr::eq(node.op, self.constant) {
            let outputs = vec![node.attr::<Tensor>("value")?];
            self.values.insert(id, Folded { outputs, control, computed: false });
            return Ok(());
        }
        let data: Vec<&Producer> = producers.iter().filter(|p| !p.is_control()).collect();
        if data.is_empty() || !is_foldable(node)? {
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(data.len());
        for producer in data {
            let Some(folded) = self.values.get(&producer.node) else { return Ok(()) };
            let Some(value) = folded.outputs.get(producer.output as usize) else { return Ok(()) };
            inputs.push(value.clone());
            for after in &folded.control {
                if !control.contains(after) {
                    control.push(*after);
                }
            }
            if control.len() > MAX_CONTROL {
                return Ok(());
            }
        }
        let given: usize = inputs.iter().map(Tensor::num_bytes).sum();
        let allowed = given.saturating_add(growth).min(self.left);
        if self.expected_bytes(node, &inputs)?.is_none_or(|bytes| bytes > allowed) {
            return Ok(());
        }
        let Some(Ok(outputs)) = kernels.evaluate(node, &inputs) else { return Ok(()) };
        let bytes = outputs.iter().map(Tensor::num_bytes).sum::<usize>();
        let types = node.output_types()?;
        let fits =
            outputs.len() == types.len() && outputs.iter().zip(&types).all(|(o, t)| o.dtype() == t.dtype);
        if fits && bytes <= allowed {
            self.left -= bytes;
            self.values.insert(id, Folded { outputs, control, computed: true });
        }
        Ok(())
    }

    /// Returns the size in bytes of the node's outputs as far as shape inference derives it from the input values, so
    /// that large outputs are refused before they are computed. Returns `None` if shape inference refuses the node.
    fn expected_bytes(&self, node: &Node, inputs: &[Tensor]) -> Result<Option<usize>> {
        let mut alone = Graph::new();
        let mut sources = Vec::with_capacity(inputs.len());
        for (i, value) in inputs.iter().enumerate() {
            sources.push(alone.add(self.constant_node(&format!("input_{i}"), value), &[], &[])?.into());
        }
        let id = alone.add(Node { name: "node".into(), ..node.clone() }, &sources, &[])?;
        let Ok(shapes) = Shapes::infer(&alone) else { return Ok(None) };
        let mut bytes = 0usize;
        for (i, port) in node.output_types()?.iter().enumerate() {
            let shape = shapes.get(Output::new(id, i));
            let size = port.dtype.size().unwrap_or(size_of::<bytes::Bytes>());
            match shape.as_shape().map(|s| s.num_elements().checked_mul(size)) {
                Some(Some(of_output)) => bytes = bytes.saturating_add(of_output),
                Some(None) => return Ok(None),
                None => {}
            }
        }
        Ok(Some(bytes))
    }

    fn constant_node(&self, name: &str, value: &Tensor) -> Node {
        Node::new(name, self.constant).with_attr("dtype", value.dtype()).with_attr("value", value.clone())
    }

    /// Returns whether a node that is not folded reads the node's value; a value that only folded nodes read needs no
    /// constant.
    fn is_needed(&self, id: NodeId) -> bool {
        self.topology
            .consumers(id)
            .iter()
            .any(|c| !c.is_control() && !self.values.get(&c.node).is_some_and(|folded| folded.computed))
    }

    /// Builds the graph in which the folded nodes are constants.
    fn rebuild(self) -> Result<Graph> {
        let graph = self.graph;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut new_ids = Vec::with_capacity(graph.len());
        // Maps each output of a folded node beyond the first to the constant that replaces the output.
        let mut further: FxHashMap<Output, NodeId> = FxHashMap::default();
        let mut folded_ids = Vec::new();
        for (id, node) in graph.nodes() {
            let folded = self.values.get(&id).filter(|f| f.computed && self.is_needed(id));
            let Some(folded) = folded else {
                new_ids.push(out.add_unconnected(node.clone())?);
                continue;
            };
            folded_ids.push(id);
            for (i, value) in folded.outputs.iter().enumerate() {
                let mut name = node.name.to_string();
                if i > 0 {
                    if !self.topology.consumers(id).iter().any(|c| c.output == i as u32) {
                        continue;
                    }
                    name = format!("{name}/output_{i}");
                    while graph.find(&name).is_some() || out.find(&name).is_some() {
                        name.push('_');
                    }
                }
                let mut new = self.constant_node(&name, value);
                new.device = node.device.clone();
                if let Some(class) = node.attrs.get("_class") {
                    new.attrs.set("_class", class.clone());
                }
                let new_id = out.add_unconnected(new)?;
                if i == 0 {
                    new_ids.push(new_id);
                } else {
                    further.insert(Output::new(id, i), new_id);
                }
            }
        }
        let new_id = |id: NodeId| new_ids[id.index()];
        let replaced: FxHashSet<NodeId> = folded_ids.iter().copied().collect();
        for id in graph.ids().filter(|id| !replaced.contains(id)) {
            for producer in self.topology.producers(id) {
                if producer.is_control() {
                    out.connect_control(new_id(producer.node), new_id(id));
                    continue;
                }
                let from = match further.get(&producer.source()) {
                    Some(constant) => Output::from(*constant),
                    None => Output { node: new_id(producer.node), index: producer.output },
                };
                out.connect(from, new_id(id), producer.input as usize);
            }
        }
        for id in folded_ids {
            let folded = &self.values[&id];
            let extra = (1..folded.outputs.len()).filter_map(|i| further.get(&Output::new(id, i)).copied());
            for to in std::iter::once(new_id(id)).chain(extra) {
                for from in &folded.control {
                    out.connect_control(new_id(*from), to);
                }
            }
        }
        checked(out)
    }
}

/// Returns whether the node is stateless, computes only values, and is not a placeholder.
fn is_foldable(node: &Node) -> Result<bool> {
    let plain = |dtype: DType| !matches!(dtype, DType::Resource | DType::Variant);
    let outputs = node.output_types()?;
    Ok(node.op.role() == Role::Compute
        && !node.op.is_stateful()
        && !is_placeholder(node.op)
        && !outputs.is_empty()
        && outputs.iter().all(|t| !t.is_ref && plain(t.dtype))
        && node.input_types()?.iter().all(|t| !t.is_ref))
}
