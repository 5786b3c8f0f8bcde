//! Inlining of function calls: a call node is replaced by the nodes of the called function's body, whose names are
//! prefixed with the call's name.

use super::{Draft, EnclosingFunction};
use crate::attr::{AttrList, AttrValue, FuncAttr};
use crate::device::DeviceSpec;
use crate::error::{Error, Result};
use crate::function::Body;
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::topology::Topology;
use bytes::Bytes;
use std::sync::Arc;

impl Draft<'_> {
    /// Inlines a call, unless the function forbids inlining or the call is inside a body of the same function.
    pub(super) fn inline(&mut self, id: NodeId) -> Result<()> {
        let func: FuncAttr = self.nodes[id.index()].attr("f")?;
        let def = self.graph.library.lookup(&func.name)?;
        let is_kept = def.has_flag("_noinline") && !self.choice.is_placed(&func.name);
        if is_kept || self.is_within(id, &func) {
            return Ok(());
        }
        let body = self.body(&func)?;
        self.inline_body(id, func, &body)
    }

    /// Replaces a node by a body: the node's inputs become the body's arguments, and readers of the node read the
    /// body's results.
    pub(super) fn inline_body(&mut self, id: NodeId, function: FuncAttr, body: &Body) -> Result<()> {
        let within = Arc::new(EnclosingFunction { function, outer: self.within[id.index()].clone() });
        let call = self.nodes[id.index()].clone();
        let args = self.values(id)?;
        if args.len() != body.args.len() {
            crate::invalid!("{} arguments are passed, the function takes {}", args.len(), body.args.len());
        }
        let entry = self.entry(id, &args, body)?;

        let topology = Topology::new(&body.graph);
        let mut place: Vec<Option<NodeId>> = vec![None; body.graph.len()];
        let mut arg_of: Vec<Option<Output>> = vec![None; body.graph.len()];
        for (node, arg) in body.args.iter().zip(&args) {
            arg_of[node.index()] = Some(*arg);
        }
        let is_end = |node: NodeId| arg_of[node.index()].is_some() || body.returns.contains(&node);
        let ends: Vec<bool> = body.graph.ids().map(is_end).collect();
        for (inner, node) in body.graph.nodes().filter(|(inner, _)| !ends[inner.index()]) {
            let node = self.inlined_node(node, &call, body)?;
            place[inner.index()] = Some(self.push_node(node, Vec::new(), Vec::new(), Some(within.clone())));
        }
        for inner in body.graph.ids() {
            let Some(to) = place[inner.index()] else { continue };
            let mut has_inner = false;
            for producer in topology.producers(inner) {
                let (from, output) = match (place[producer.node.index()], arg_of[producer.node.index()]) {
                    (Some(from), _) => {
                        has_inner = true;
                        (from, Output { node: from, index: producer.output })
                    }
                    (None, Some(arg)) => (arg.node, arg),
                    (None, None) => continue,
                };
                if producer.is_control() {
                    self.controls[to.index()].push(from);
                } else {
                    self.inputs[to.index()].push(output);
                }
            }
            // A branch or a loop whose condition reads only loop constants needs the entry node as a control input:
            // loop constants are alive in every iteration, so it would otherwise run in a dead iteration and start
            // further iterations.
            if !has_inner || self.choice.of(&self.nodes[to.index()]).is_some() {
                self.controls[to.index()].extend(entry);
            }
        }
        let mut outputs = Vec::with_capacity(body.returns.len());
        for returned in &body.returns {
            let source = topology.producers(*returned).first().map(|p| p.source());
            let source = source.ok_or_else(|| Error::invalid("an output of the body has no source"))?;
            outputs.push(match (place[source.node.index()], arg_of[source.node.index()], entry) {
                (Some(node), _, _) => Output { node, index: source.index },
                (None, Some(arg), None) => arg,
                (None, Some(arg), Some(entry)) => {
                    let attrs = [("T", self.type_of(arg)?.dtype.into())];
                    self.add(id, "output", "Identity", &attrs, vec![arg], vec![entry])?.into()
                }
                (None, None, _) => return Err(Error::invalid("an output of the body has no source")),
            });
        }
        let stateful = body.graph.nodes().filter(|(_, node)| node.op.is_stateful()).map(|(inner, _)| inner);
        let ran = stateful.chain(body.control_returns.iter().copied());
        let ran = ran.filter_map(|inner| place[inner.index()]).chain(entry).collect();
        self.replace(id, outputs, ran)
    }

    /// Returns whether the node comes from the body of this function, directly or through nested calls.
    pub(super) fn is_within(&self, id: NodeId, func: &FuncAttr) -> bool {
        let mut next = self.within[id.index()].as_ref();
        while let Some(within) = next {
            if within.function == *func {
                return true;
            }
            next = within.outer.as_ref();
        }
        false
    }

    /// Returns the instantiated body of a function; bodies are cached per function and attributes.
    pub(super) fn body(&mut self, func: &FuncAttr) -> Result<Arc<Body>> {
        let known = self.bodies.entry(func.name.clone()).or_default();
        if let Some((_, body)) = known.iter().find(|(f, _)| f == func) {
            return Ok(body.clone());
        }
        let def = self.graph.library.lookup(&func.name)?;
        let body = Arc::new(def.instantiate(&func.attrs, &self.graph.library)?);
        known.push((func.clone(), body.clone()));
        Ok(body)
    }

    /// Returns the node that becomes a control input of the body's nodes that have no inputs or will be lowered; `None`
    /// if no such node is needed. The returned node runs after the control inputs of the call. If the call has none and
    /// the graph has Switch or Enter nodes, the returned node runs after the arguments, so that the whole body is dead
    /// when the arguments are dead and runs once per iteration.
    fn entry(&mut self, id: NodeId, args: &[Output], body: &Body) -> Result<Option<NodeId>> {
        let mut waits = self.controls[id.index()].clone();
        let steers = |role| matches!(role, Role::Switch | Role::Enter);
        if waits.is_empty() {
            let has_flow = self.has_flow || body.graph.nodes().any(|(_, node)| steers(node.op.role()));
            let is_source = |(n, _): &(NodeId, &Node)| {
                body.graph.inputs(*n).is_empty() && body.graph.control_inputs(*n).is_empty()
            };
            let mut inner = body.graph.nodes().filter(|(n, _)| !body.args.contains(n));
            let needs_entry = |node: (NodeId, &Node)| is_source(&node) || self.choice.of(node.1).is_some();
            if !has_flow || !inner.any(needs_entry) {
                return Ok(None);
            }
            waits = self.producers_of(id, args)?;
            if waits.is_empty() {
                return Ok(None);
            }
        }
        match waits[..] {
            [wait] => Ok(Some(wait)),
            _ => self.add(id, "input_control_node", "NoOp", &[], Vec::new(), waits).map(Some),
        }
    }

    /// Returns the nodes that have run when all values are available, for use as control inputs of the node `id`.
    pub(super) fn producers_of(&mut self, id: NodeId, values: &[Output]) -> Result<Vec<NodeId>> {
        let mut waits = Vec::with_capacity(values.len());
        for value in values {
            // An Identity waits for a value alone, which is needed in two cases. The value may be an output of another
            // call: a control edge from the call would wait for its side effects, although the value may be fed. Or the
            // value may be an output of a Switch: a control edge from the Switch is alive even if that output is dead.
            let is_switch = self.nodes[value.node.index()].op.role() == Role::Switch;
            waits.push(if is_switch || self.is_call(value.node) {
                let attrs = [("T", self.type_of(*value)?.dtype.into())];
                self.add(id, "input", "Identity", &attrs, vec![*value], Vec::new())?
            } else {
                value.node
            });
        }
        waits.sort_unstable();
        waits.dedup();
        Ok(waits)
    }

    /// Returns the control inputs of a branch or a loop that is lowered. If it has none and the graph has Switch or
    /// Enter nodes, returns the producers of its inputs, so that the branch or loop is dead if one of its inputs is
    /// dead.
    pub(super) fn controls_of_lowered(&mut self, id: NodeId) -> Result<Vec<NodeId>> {
        let controls = self.controls[id.index()].clone();
        if !controls.is_empty() || !self.began_with_flow || self.within[id.index()].is_some() {
            return Ok(controls);
        }
        let values = self.values(id)?;
        self.producers_of(id, &values)
    }

    /// Returns a node of the body as a node of the calling graph, with its name, device, loop frame and colocation
    /// adapted.
    fn inlined_node(&mut self, node: &Node, call: &Node, body: &Body) -> Result<Node> {
        let mut inner = node.clone();
        inner.name = self.reserve_name(&format!("{}/{}", call.name, node.name));
        inner.device = device_within(&node.device, &call.device);
        if node.op.role() == Role::Enter {
            let frame = node.attr::<String>("frame_name")?;
            inner.attrs.set("frame_name", format!("{}/{frame}", call.name));
        }
        if let Some(AttrValue::List(AttrList::Str(classes))) = node.attrs.get("_class") {
            let renamed: Vec<Bytes> = classes
                .iter()
                .filter_map(|class| {
                    let name = std::str::from_utf8(class).ok()?.strip_prefix("loc:@")?;
                    let with = body.graph.find(name)?;
                    let is_inside = !body.args.contains(&with) && !body.returns.contains(&with);
                    is_inside.then(|| format!("loc:@{}/{name}", call.name).into())
                })
                .collect();
            inner.attrs.remove("_class");
            if !renamed.is_empty() {
                inner.attrs.set("_class", renamed);
            }
        }
        Ok(inner)
    }
}

/// Returns the device that a node of a body asks for; the call's device fills the parts that the node leaves open.
fn device_within(own: &Arc<str>, call: &Arc<str>) -> Arc<str> {
    if own.is_empty() || call.is_empty() || own == call {
        return if own.is_empty() { call.clone() } else { own.clone() };
    }
    match (DeviceSpec::parse(own), DeviceSpec::parse(call)) {
        (Ok(own), Ok(call)) => own.or(&call).to_string().into(),
        // If a device name is invalid, the node's device is returned unchanged; the placer reports the error.
        _ => own.clone(),
    }
}
