//! The graph builder: a [`Scope`] adds nodes under a name prefix, a device, control inputs and a colocation. Each
//! family of ops has a file with its builders.

mod activation;
mod bias;
mod binary;
mod call;
mod cast;
mod check;
mod checkpoint;
mod collective;
mod compare;
mod complex;
mod concat;
mod constant;
mod control_flow;
mod conv;
mod file;
mod gather;
mod identity;
mod matmul;
mod nccl;
mod pad;
mod parsing;
mod partition;
mod pool;
mod random;
mod reduce;
mod resource;
mod scatter;
mod segment;
mod select;
mod shape;
mod slice;
mod softmax;
mod stack;
mod stateless_random;
mod string;
mod summary;
mod tensor_array;
mod topk;
pub mod training;
mod transfer;
mod transpose;
mod unary;
mod unique;
mod variable;

pub use call::{Argument, Call};
pub use collective::{Collective, CollectiveGroup, CollectiveReduction};
pub use control_flow::WhileOptions;
pub use slice::SliceIndex;

use control_flow::FlowContext;

use crate::device::DeviceSpec;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::infer::Shapes;
use crate::node::Node;
use crate::shape::PartialShape;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// A builder that adds nodes to a graph. Clones, and scopes derived from this one, add to the same graph.
///
/// Methods return outputs immediately. The first error is recorded, and [`Scope::finish`] returns it with the node's
/// name, so expressions nest without `?`. After an error no more nodes are added.
#[derive(Clone)]
pub struct Scope {
    build: Rc<RefCell<Build>>,
    context: Rc<Context>,
}

/// A function that chooses devices, like TensorFlow's device functions: it takes the node, whose `device` holds the
/// request of inner scopes, and returns a device that fills the parts left open.
pub type DeviceFunction = dyn Fn(&Node) -> DeviceSpec;

#[derive(Default)]
struct Build {
    graph: Graph,
    shapes: Shapes,
    error: Option<Error>,
    /// For each node, the number of the branch or loop that contains the node; 0 for none.
    contexts: Vec<u32>,
    num_contexts: u32,
    used_names: FxHashMap<String, usize>,
}

#[derive(Clone, Default)]
struct Context {
    prefix: String,
    /// The device scopes, outermost first.
    devices: Vec<DeviceRule>,
    control: SmallVec<[NodeId; 2]>,
    colocate_with: Option<Arc<str>>,
    /// The innermost branch or loop around the scope.
    flow: Option<Rc<FlowContext>>,
    /// True for scopes that add the control-flow ops of a branch or loop; the inputs of these ops are used without
    /// capturing.
    is_wiring: bool,
}

#[derive(Clone)]
enum DeviceRule {
    Spec(DeviceSpec),
    Function(Rc<DeviceFunction>),
}

/// The node of the forward pass whose gradient is being built.
#[derive(Clone, Debug)]
pub struct Forward {
    pub id: NodeId,
    pub node: Node,
    pub inputs: SmallVec<[Output; 4]>,
}

impl Forward {
    /// Returns data input `i`.
    pub fn input(&self, i: usize) -> Output {
        self.inputs[i]
    }

    /// Returns output `i`.
    pub fn output(&self, i: usize) -> Output {
        Output::new(self.id, i)
    }

    /// Returns the value of an attribute, or its default.
    pub fn attr<T: crate::attr::FromAttr>(&self, name: &str) -> Result<T> {
        self.node.attr(name)
    }
}

/// The node index in outputs returned after an error, when no node was added.
const MISSING_NODE: u32 = u32::MAX;

impl Default for Scope {
    fn default() -> Scope {
        Scope::new()
    }
}

impl Scope {
    /// Returns a scope that adds to a new graph.
    pub fn new() -> Scope {
        Scope { build: Rc::default(), context: Rc::default() }
    }

    /// Returns a scope that adds to an existing graph.
    ///
    /// # Errors
    /// The errors of shape inference on the graph.
    pub fn over(graph: Graph) -> Result<Scope> {
        let shapes = Shapes::infer(&graph)?;
        let used_names = graph.nodes().map(|(_, n)| (n.name.to_lowercase(), 1)).collect();
        let build = Build { graph, shapes, used_names, ..Build::default() };
        Ok(Scope { build: Rc::new(RefCell::new(build)), context: Rc::default() })
    }

    /// Returns a copy of the current graph.
    ///
    /// # Errors
    /// The first recorded error.
    pub fn finish(&self) -> Result<Graph> {
        let build = self.build.borrow();
        match &build.error {
            Some(error) => Err(error.clone()),
            None => Ok(build.graph.clone()),
        }
    }

    /// Returns a scope that prefixes the names of its nodes with `name/`; if `name` is in use, a number is appended to
    /// it.
    pub fn name_scope(&self, name: &str) -> Scope {
        let prefix = format!("{}/", self.unique_name(name));
        self.with(|c| c.prefix = prefix)
    }

    /// Returns a scope whose nodes are on the device `spec`, except for the parts that inner device scopes set.
    pub fn device(&self, spec: &str) -> Scope {
        match DeviceSpec::parse(spec) {
            Ok(spec) => self.with(|c| c.devices.push(DeviceRule::Spec(spec))),
            Err(error) => {
                self.fail(error);
                self.clone()
            }
        }
    }

    /// Returns a scope whose nodes are on the device that `function` returns for them.
    pub fn device_fn(&self, function: impl Fn(&Node) -> DeviceSpec + 'static) -> Scope {
        self.with(|c| c.devices.push(DeviceRule::Function(Rc::new(function))))
    }

    /// Returns a scope whose nodes have these control inputs.
    pub fn control(&self, after: &[NodeId]) -> Scope {
        self.with(|c| {
            for id in after {
                if !c.control.contains(id) {
                    c.control.push(*id);
                }
            }
        })
    }

    /// Returns a scope whose nodes are colocated with `node`; the device scopes outside the returned scope do not
    /// apply.
    pub fn colocate_with(&self, node: NodeId) -> Scope {
        let Some((name, device)) = self.read(|g, _| (g.node(node).name.clone(), g.node(node).device.clone()))
        else {
            return self.clone();
        };
        let beside = self.with(|c| {
            c.colocate_with = Some(name);
            c.devices.clear();
        });
        if device.is_empty() { beside } else { beside.device(&device) }
    }

    /// Returns a scope on the CPU of the task that the device of `node` names; the device scopes outside the returned
    /// scope do not apply. The scope is for ops that belong to a node but need not share its device, such as reading
    /// files.
    pub fn host_of(&self, node: NodeId) -> Scope {
        let device = self.read(|g, _| g.node(node).device.clone()).unwrap_or_default();
        // An invalid device is ignored here, because it is reported as an error of `node`.
        let task = DeviceSpec::parse(&device).unwrap_or_default();
        let cpu = DeviceSpec { device_type: Some("CPU".into()), id: Some(0), ..task };
        let anywhere = self.with(|c| {
            c.colocate_with = None;
            c.devices.clear();
        });
        anywhere.device(&cpu.to_string())
    }

    /// Starts a node of any op; inputs and attributes are set on the returned [`Call`].
    pub fn op<'a>(&'a self, op: &'a str) -> Call<'a> {
        Call::new(self, op)
    }

    /// Returns the type of an output; `Float` after an error.
    pub fn dtype(&self, output: Output) -> DType {
        self.read(|g, _| g.output_type(output).map(|t| t.dtype)).and_then(Result::ok).unwrap_or(DType::Float)
    }

    /// Returns the inferred shape of an output.
    pub fn shape(&self, output: Output) -> PartialShape {
        self.read(|_, s| s.get(output)).unwrap_or_default()
    }

    /// Calls `look` with the graph and its shapes; returns `None` after an error.
    pub fn read<R>(&self, look: impl FnOnce(&Graph, &Shapes) -> R) -> Option<R> {
        let build = self.build.borrow();
        if build.error.is_some() { None } else { Some(look(&build.graph, &build.shapes)) }
    }

    /// Records an error, unless there is one already.
    pub fn fail(&self, error: Error) {
        self.build.borrow_mut().error.get_or_insert(error);
    }

    fn with(&self, change: impl FnOnce(&mut Context)) -> Scope {
        let mut context = (*self.context).clone();
        change(&mut context);
        Scope { build: self.build.clone(), context: Rc::new(context) }
    }

    /// Returns `name` under the scope's prefix, with a number if the name is in use. Names are compared without case.
    fn unique_name(&self, name: &str) -> String {
        let full = format!("{}{name}", self.context.prefix);
        let mut build = self.build.borrow_mut();
        let key = full.to_lowercase();
        let count = build.used_names.get(&key).copied().unwrap_or(0);
        if count == 0 {
            build.used_names.insert(key, 1);
            return full;
        }
        let mut n = count;
        loop {
            let candidate = format!("{full}_{n}");
            n += 1;
            let candidate_key = candidate.to_lowercase();
            if !build.used_names.contains_key(&candidate_key) {
                build.used_names.insert(key, n);
                build.used_names.insert(candidate_key, 1);
                return candidate;
            }
        }
    }

    /// Adds a node with the scope's device, colocation and control inputs, and infers its shapes.
    fn add_node(&self, name: &str, mut node: Node, inputs: &[Output], control: &[NodeId]) -> Result<NodeId> {
        node.name = self.unique_name(name).into();
        if let Some(with) = &self.context.colocate_with
            && node.attrs.get("_class").is_none()
        {
            node.attrs.set("_class", vec![bytes::Bytes::from(format!("loc:@{with}"))]);
        }
        node.device = self.device_of(&node)?;
        let mut after = self.context.control.clone();
        after.extend(control.iter().copied());
        let inputs = self.capture_inputs(inputs, &mut after)?;
        let build = &mut *self.build.borrow_mut();
        let id = build.graph.add(node, &inputs, &after)?;
        build.shapes.infer_node(&build.graph, id)?;
        if let Some(flow) = &self.context.flow {
            build.set_context(id, flow.id());
        }
        Ok(id)
    }

    /// Returns the device of a node after applying the device scopes, innermost first.
    fn device_of(&self, node: &Node) -> Result<Arc<str>> {
        let mut spec = DeviceSpec::parse(&node.device)?;
        let mut seen = node.clone();
        for rule in self.context.devices.iter().rev() {
            spec = match rule {
                DeviceRule::Spec(outer) => spec.or(outer),
                DeviceRule::Function(function) => {
                    seen.device = spec.to_string().into();
                    spec.or(&function(&seen))
                }
            };
        }
        Ok(spec.to_string().into())
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope('{}', {} nodes)", self.context.prefix, self.build.borrow().graph.len())
    }
}
