//! Gradients by reverse accumulation. The nodes between `xs` and `ys` are visited in reverse topological order; each
//! op's rule adds the nodes that compute the gradients of its inputs from the gradients of its outputs. Existing nodes
//! are never changed.

use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::infer::Shapes;
use crate::ops::{Gradient, Role};
use crate::tensor::Tensor;
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// Options for building gradients.
#[derive(Clone, Debug, Default)]
pub struct GradientOptions {
    /// True if each gradient node is colocated with the forward node whose gradient the gradient node computes.
    pub colocate: bool,
    /// Outputs that count as constants: no gradient flows back through them.
    pub stop: Vec<Output>,
}

impl Scope {
    /// Adds the gradients of the sum of `ys` with respect to each of `xs`; calls the function [`gradients`].
    pub fn gradients(
        &self,
        ys: &[Output],
        xs: &[Output],
        grad_ys: &[Option<Output>],
    ) -> Result<Vec<Option<Output>>> {
        gradients(self, ys, xs, grad_ys)
    }
}

/// Adds the gradients of `ys` with respect to `xs`, under the name scope `gradients`.
///
/// The result is `None` for an x on which no y depends. `grad_ys` holds the gradient that arrives at each y, where
/// `None` means ones; it may be empty.
///
/// # Errors
/// `NoGradient` naming a node between `xs` and `ys` whose op has no gradient, `Unimplemented` for loops,
/// `InvalidArgument` if `grad_ys` do not fit `ys`, and the errors of building the nodes.
pub fn gradients(
    scope: &Scope,
    ys: &[Output],
    xs: &[Output],
    grad_ys: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    gradients_with(scope, ys, xs, grad_ys, &GradientOptions::default())
}

/// Adds the same gradients as [`gradients`], under the given options.
pub fn gradients_with(
    scope: &Scope,
    ys: &[Output],
    xs: &[Output],
    grad_ys: &[Option<Output>],
    options: &GradientOptions,
) -> Result<Vec<Option<Output>>> {
    if !grad_ys.is_empty() && grad_ys.len() != ys.len() {
        crate::invalid!("{} gradients are given for {} outputs", grad_ys.len(), ys.len());
    }
    let path = with_graph(scope, |graph, _| GradientPath::new(graph, ys, xs, &options.stop))??;
    let root = scope.name_scope("gradients");
    let mut backward = Backward { scope, root: &root, options, path, arrived: FxHashMap::default() };
    for (i, &y) in ys.iter().enumerate() {
        backward.start(i, y, grad_ys.get(i).copied().flatten())?;
    }
    let wanted: FxHashSet<Output> = xs.iter().copied().collect();
    let mut results: FxHashMap<Output, Output> = FxHashMap::default();
    backward.run(ys, &wanted, &mut results)?;
    Ok(xs.iter().map(|x| results.get(x).copied()).collect())
}

/// Returns the result of `inspect` on the scope's graph and shapes, or the scope's error if it has one.
fn with_graph<R>(scope: &Scope, inspect: impl FnOnce(&Graph, &Shapes) -> R) -> Result<R> {
    match scope.read(inspect) {
        Some(result) => Ok(result),
        None => Err(scope.finish().err().unwrap_or(Error::Invalid {
            code: Code::Internal,
            message: "the scope has neither a graph nor an error".into(),
        })),
    }
}

/// Returns whether a gradient can arrive at a value of this type. The gradient of a resource variable arrives at its
/// handle.
fn carries_gradient(dtype: DType) -> bool {
    dtype.is_differentiable() || dtype == DType::Resource
}

/// The nodes on the paths from `xs` to `ys`, in the graph before gradients are added.
struct GradientPath {
    topology: Topology,
    /// For each node, the number of its outgoing edges to nodes on the path that the backward pass has not processed
    /// yet.
    pending: Vec<u32>,
    /// Set for nodes that depend on an x and that a y depends on.
    on_path: Vec<bool>,
    /// Set for nodes through which gradients do not flow back.
    stopped: Vec<bool>,
}

impl GradientPath {
    /// Finds the nodes on the paths from `xs` to `ys`; fails if one is a control-flow op that has no gradient.
    fn new(graph: &Graph, ys: &[Output], xs: &[Output], stop: &[Output]) -> Result<GradientPath> {
        for output in ys.iter().chain(xs).chain(stop) {
            if output.node.index() >= graph.len() {
                crate::invalid!("an output is not of this graph");
            }
            graph.output_type(*output)?;
        }
        let topology = Topology::new(graph);
        let reached = reachable_from(graph, &topology, xs)?;

        let mut on_path = vec![false; graph.len()];
        let mut pending = vec![0u32; graph.len()];
        let mut open = Vec::new();
        for y in ys {
            if reached[y.node.index()] && !std::mem::replace(&mut on_path[y.node.index()], true) {
                open.push(y.node);
            }
        }
        while let Some(id) = open.pop() {
            for producer in topology.producers(id).iter().filter(|p| !p.is_control()) {
                let from = producer.node.index();
                if reached[from] {
                    pending[from] += 1;
                    if !std::mem::replace(&mut on_path[from], true) {
                        open.push(producer.node);
                    }
                }
            }
        }

        let mut stopped = vec![false; graph.len()];
        for x in xs {
            let inner = topology.producers(x.node).iter();
            stopped[x.node.index()] = !inner.filter(|p| !p.is_control()).any(|p| on_path[p.node.index()]);
        }
        for output in stop {
            stopped[output.node.index()] = true;
        }
        for (id, node) in graph.nodes() {
            let i = id.index();
            let flow = match node.op.role() {
                Role::Compute
                | Role::Send
                | Role::Recv
                | Role::ControlTrigger
                | Role::Switch
                | Role::Merge => false,
                Role::Enter | Role::Exit | Role::NextIteration | Role::LoopCond => true,
            };
            if flow && on_path[i] && !stopped[i] {
                let message = format!("gradients through loops (op '{}') are not there", node.op.name());
                return Err(Error::unimplemented(message).at_node(&node.name));
            }
        }
        Ok(GradientPath { topology, pending, on_path, stopped })
    }
}

/// Returns the nodes that depend on `xs` through edges that can carry gradients.
fn reachable_from(graph: &Graph, topology: &Topology, xs: &[Output]) -> Result<Vec<bool>> {
    let mut reached = vec![false; graph.len()];
    let mut open = Vec::new();
    for x in xs {
        if !std::mem::replace(&mut reached[x.node.index()], true) {
            open.push(x.node);
        }
    }
    while let Some(id) = open.pop() {
        let types = graph.node(id).output_types()?;
        for consumer in topology.consumers(id).iter().filter(|c| !c.is_control()) {
            let carries = types.get(consumer.output as usize).is_some_and(|t| carries_gradient(t.dtype));
            if carries && !std::mem::replace(&mut reached[consumer.node.index()], true) {
                open.push(consumer.node);
            }
        }
    }
    Ok(reached)
}

/// The state of one backward pass.
struct Backward<'a> {
    scope: &'a Scope,
    /// The name scope of the new nodes.
    root: &'a Scope,
    options: &'a GradientOptions,
    path: GradientPath,
    /// Gradients that have arrived at outputs and are not summed yet.
    arrived: FxHashMap<Output, SmallVec<[Output; 2]>>,
}

impl Backward<'_> {
    /// Records the initial gradient of `ys[i]`: `given`, or ones if the caller gave none.
    fn start(&mut self, i: usize, y: Output, given: Option<Output>) -> Result<()> {
        if !self.path.on_path[y.node.index()] {
            return Ok(());
        }
        let dtype = with_graph(self.scope, |g, _| g.output_type(y))??.dtype;
        if !carries_gradient(dtype) {
            return Ok(());
        }
        let gradient = match given {
            Some(given) => {
                let (actual, fits) = with_graph(self.scope, |g, s| {
                    g.output_type(given).map(|t| (t.dtype, s.get(given).is_compatible(&s.get(y))))
                })??;
                let name = with_graph(self.scope, |g, _| g.output_name(y))?;
                if actual != dtype {
                    crate::invalid!("Gradient type {actual} generated for tensor {name} of type {dtype}");
                }
                if !fits {
                    crate::invalid!("the gradient given for {name} is of another shape");
                }
                given
            }
            None if dtype.is_complex() => {
                let name = with_graph(self.scope, |g, _| g.output_name(y))?;
                crate::invalid!("Gradients of complex tensors must set grad_ys ({name})");
            }
            None => self.ones(i, y, dtype)?,
        };
        self.arrived.entry(y).or_default().push(gradient);
        Ok(())
    }

    /// Adds a tensor of ones with the shape of `ys[i]`.
    fn ones(&self, i: usize, y: Output, dtype: DType) -> Result<Output> {
        let name = format!("grad_ys_{i}");
        let scope = self.scope_of(y.node)?;
        let is_scalar = with_graph(self.scope, |_, s| s.get(y).rank() == Some(0))?;
        let one = match dtype {
            DType::Float => Some(Tensor::from(1f32)),
            DType::Double => Some(Tensor::from(1f64)),
            DType::Half => Some(Tensor::from(half::f16::ONE)),
            DType::BFloat16 => Some(Tensor::from(half::bf16::ONE)),
            _ => None,
        };
        let ones = match one {
            Some(one) if is_scalar => {
                scope.op("Const").attr("dtype", dtype).attr("value", one).name(&name).output()
            }
            _ => scope.op("OnesLike").input(y).name(&name).output(),
        };
        with_graph(self.scope, |_, _| ones)
    }

    /// Returns the scope for the gradient nodes of the node `id`.
    fn scope_of(&self, id: NodeId) -> Result<Scope> {
        Ok(if self.options.colocate { self.root.colocate_with(id) } else { self.root.clone() })
    }

    /// Processes the nodes on the path, each after all its consumers on the path.
    fn run(
        &mut self,
        ys: &[Output],
        wanted: &FxHashSet<Output>,
        results: &mut FxHashMap<Output, Output>,
    ) -> Result<()> {
        let mut ready: Vec<NodeId> = Vec::new();
        let mut queued = FxHashSet::default();
        for y in ys {
            let i = y.node.index();
            if self.path.on_path[i] && self.path.pending[i] == 0 && queued.insert(y.node) {
                ready.push(y.node);
            }
        }
        let mut next = 0;
        while let Some(&id) = ready.get(next) {
            next += 1;
            self.visit(id, wanted, results)?;
            for slot in 0..self.path.topology.producers(id).len() {
                let producer = self.path.topology.producers(id)[slot];
                let from = producer.node.index();
                if producer.is_control() || !self.path.on_path[from] {
                    continue;
                }
                self.path.pending[from] -= 1;
                if self.path.pending[from] == 0 {
                    ready.push(producer.node);
                }
            }
        }
        Ok(())
    }

    /// Sums the gradients that arrived at the node's outputs, and applies the op's gradient rule to its inputs.
    fn visit(
        &mut self,
        id: NodeId,
        wanted: &FxHashSet<Output>,
        results: &mut FxHashMap<Output, Output>,
    ) -> Result<()> {
        let node = with_graph(self.scope, |g, _| g.node(id).clone())?;
        let types = node.output_types()?;
        let goes_on = !self.path.stopped[id.index()] && !matches!(node.op.def.gradient, Gradient::Leaf);
        let mut gradients = Vec::with_capacity(types.len());
        for index in 0..types.len() {
            let output = Output::new(id, index);
            let sum = match self.arrived.remove(&output) {
                Some(parts) if goes_on || wanted.contains(&output) => Some(self.sum(id, parts)?),
                _ => None,
            };
            if let Some(sum) = sum
                && wanted.contains(&output)
            {
                results.insert(output, sum);
            }
            gradients.push(sum);
        }
        if !goes_on || gradients.iter().all(Option::is_none) {
            return Ok(());
        }
        let Gradient::Defined(rule) = node.op.def.gradient else {
            return Err(Error::NoGradient { node: node.name.to_string(), op: node.op.name().to_owned() });
        };
        let producers = self.path.topology.producers(id).iter();
        let inputs: SmallVec<[Output; 4]> =
            producers.filter(|p| !p.is_control()).map(|p| p.source()).collect();
        let forward = Forward { id, node: node.clone(), inputs };
        let scope = self.scope_of(id)?.name_scope(&format!("{}_grad", node.name));
        let flowing = rule(&scope, &forward, &gradients).map_err(|e| e.at_node(&node.name))?;
        // A gradient rule does not return the error of a node that it failed to add; the scope holds that error.
        with_graph(self.scope, |_, _| ())?;
        if flowing.len() != forward.inputs.len() {
            return Err(Error::Node {
                code: Code::Internal,
                node: node.name.to_string(),
                message: format!(
                    "Num gradients {} generated for op {} do not match num inputs {}",
                    flowing.len(),
                    node.op.name(),
                    forward.inputs.len()
                ),
            });
        }
        for (&input, gradient) in forward.inputs.iter().zip(flowing) {
            let Some(gradient) = gradient else { continue };
            let dtype = with_graph(self.scope, |g, _| g.output_type(input))??.dtype;
            if self.path.on_path[input.node.index()] && carries_gradient(dtype) {
                self.arrived.entry(input).or_default().push(gradient);
            }
        }
        Ok(())
    }

    /// Returns the sum of the gradients `parts`, which arrived at one output of the node `id`.
    fn sum(&self, id: NodeId, parts: SmallVec<[Output; 2]>) -> Result<Output> {
        if let [only] = parts[..] {
            return Ok(only);
        }
        let sum = self.scope_of(id)?.op("AddN").input(parts.to_vec()).output();
        with_graph(self.scope, |_, _| sum)
    }
}
