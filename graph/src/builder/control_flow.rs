//! Builders of branches and loops as low-level control flow. Values from outside that a branch or a loop body uses
//! are captured automatically.

use super::{Build, Scope};
use crate::error::{Error, Result};
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::ops;
use crate::shape::PartialShape;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Options of a loop.
#[derive(Clone, Debug)]
pub struct WhileOptions {
    /// The number of iterations that may run at the same time.
    pub parallel_iterations: i64,
    /// The shape that each variable has in every iteration; if the list is empty, each variable keeps its initial
    /// shape.
    pub shape_invariants: Vec<PartialShape>,
}

impl Default for WhileOptions {
    fn default() -> WhileOptions {
        WhileOptions { parallel_iterations: 10, shape_invariants: Vec::new() }
    }
}

/// A control-flow context: one side of a branch, or a loop.
pub(super) struct FlowContext {
    id: u32,
    parent: Option<Rc<FlowContext>>,
    kind: ContextKind,
    /// The node that becomes the control input of each node that has no inputs in this context.
    pivot: Cell<NodeId>,
    /// Captured values: maps each value from outside the context to the output of the Switch or Enter node that nodes
    /// inside the context read instead.
    captured: RefCell<FxHashMap<Output, Output>>,
}

/// The kind of a control-flow context.
enum ContextKind {
    /// A side of a branch: its nodes are alive if output `side` of a Switch on `pred` is alive.
    Branch {
        pred: Output,
        side: u32,
    },
    Loop {
        frame: String,
        parallel_iterations: i64,
    },
}

impl FlowContext {
    /// Returns the number that identifies the context.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn is_loop(&self) -> bool {
        matches!(self.kind, ContextKind::Loop { .. })
    }
}

impl Build {
    /// Records the context that a node belongs to.
    pub(super) fn set_context(&mut self, id: NodeId, context: u32) {
        if self.contexts.len() <= id.index() {
            self.contexts.resize(id.index() + 1, 0);
        }
        self.contexts[id.index()] = context;
    }

    fn context_of(&self, id: NodeId) -> u32 {
        self.contexts.get(id.index()).copied().unwrap_or(0)
    }
}

impl Scope {
    /// Returns the values of `then` if `pred` is true, otherwise the values of `otherwise`; only that side runs. Both
    /// sides must return the same number of values, of the same types. After an error the result is empty.
    pub fn cond(
        &self,
        pred: Output,
        then: impl FnOnce(&Scope) -> Vec<Output>,
        otherwise: impl FnOnce(&Scope) -> Vec<Output>,
    ) -> Vec<Output> {
        self.or_empty(self.build_branches(pred, then, otherwise))
    }

    /// Repeats `body` while `cond` is true, and returns the final values of the loop variables. Both functions take
    /// the variables; `body` returns their next values. After an error the result is empty.
    pub fn while_loop(
        &self,
        variables: &[Output],
        cond: impl FnOnce(&Scope, &[Output]) -> Output,
        body: impl FnOnce(&Scope, &[Output]) -> Vec<Output>,
        options: &WhileOptions,
    ) -> Vec<Output> {
        self.or_empty(self.build_loop(variables, cond, body, options))
    }

    fn or_empty(&self, outputs: Result<Vec<Output>>) -> Vec<Output> {
        outputs.unwrap_or_else(|error| {
            self.fail(error);
            Vec::new()
        })
    }

    /// Returns the recorded error, if there is one.
    fn check_error(&self) -> Result<()> {
        match &self.build.borrow().error {
            Some(error) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn build_branches(
        &self,
        pred: Output,
        then: impl FnOnce(&Scope) -> Vec<Output>,
        otherwise: impl FnOnce(&Scope) -> Vec<Output>,
    ) -> Result<Vec<Output>> {
        let scope = self.name_scope("cond");
        let pred = scope.op("Identity").input(pred).name("pred_id").output();
        let sides = scope.op("Switch").input(pred).input(pred).outputs();
        self.check_error()?;
        let side = |side: u32, name: &str| {
            let inside = scope.enter_context(ContextKind::Branch { pred, side }).name_scope(name);
            let pivot = inside.wiring().op("Identity").input(sides[side as usize]).name("pivot").node();
            inside.set_pivot(pivot);
            inside
        };
        let inside = side(1, "then");
        let yes = inside.capture_all(&then(&inside))?;
        let inside = side(0, "else");
        let no = inside.capture_all(&otherwise(&inside))?;
        self.check_error()?;
        if yes.len() != no.len() {
            crate::invalid!("the sides of a branch give {} and {} values", yes.len(), no.len());
        }
        let merge = |(no, yes): (Output, Output)| {
            let (a, b) = (scope.dtype(no), scope.dtype(yes));
            if a != b {
                crate::invalid!("the sides of a branch give values of types {b} and {a}");
            }
            Ok(scope.wiring().op("Merge").input(vec![no, yes]).output())
        };
        let merged = no.into_iter().zip(yes).map(merge).collect::<Result<_>>()?;
        self.check_error()?;
        Ok(merged)
    }

    fn build_loop(
        &self,
        variables: &[Output],
        cond: impl FnOnce(&Scope, &[Output]) -> Output,
        body: impl FnOnce(&Scope, &[Output]) -> Vec<Output>,
        options: &WhileOptions,
    ) -> Result<Vec<Output>> {
        if variables.is_empty() {
            crate::invalid!("a loop without variables never ends");
        }
        if !options.shape_invariants.is_empty() && options.shape_invariants.len() != variables.len() {
            let (shapes, count) = (options.shape_invariants.len(), variables.len());
            crate::invalid!("{shapes} shape invariants are given for {count} variables");
        }
        let scope = self.name_scope("while");
        let mut starts = Vec::new();
        for &variable in variables {
            starts.push(self.capture(variable)?);
        }
        let frame = format!("{}while_context", scope.context.prefix);
        let parallel_iterations = options.parallel_iterations;
        let kind = ContextKind::Loop { frame: frame.clone(), parallel_iterations };
        let inside = scope.enter_context(kind);
        let wires = inside.wiring();
        let (mut merges, mut shapes) = (Vec::new(), Vec::new());
        for (i, &start) in starts.iter().enumerate() {
            let at_start = self.shape(start);
            let shape = options.shape_invariants.get(i).cloned().unwrap_or_else(|| at_start.clone());
            if !still_holds(&shape, &at_start) {
                crate::invalid!("variable {i} of a loop starts with shape {at_start}, which is not {shape}");
            }
            let enter = wires.op("Enter").input(start).attr("frame_name", frame.as_str());
            let enter = enter.attr("parallel_iterations", parallel_iterations).output();
            merges.push(wires.open_merge(enter, &shape)?);
            shapes.push(shape);
        }
        inside.set_pivot(merges[0].node);
        let testing = inside.name_scope("cond");
        let more = cond(&testing, &merges);
        let more = testing.capture_all(&[more])?[0];
        let more = wires.op("LoopCond").input(more).output();
        let sides: Vec<Vec<Output>> =
            merges.iter().map(|&merge| wires.op("Switch").input(merge).input(more).outputs()).collect();
        self.check_error()?;
        let at: Vec<Output> = sides.iter().map(|side| wires.op("Identity").input(side[1]).output()).collect();
        inside.set_pivot(at[0].node);
        let going = inside.name_scope("body");
        let results = going.capture_all(&body(&going, &at))?;
        if results.len() != variables.len() {
            let (given, count) = (results.len(), variables.len());
            crate::invalid!("the body of a loop of {count} variables gives {given} values");
        }
        for (i, (&merge, &result)) in merges.iter().zip(&results).enumerate() {
            let next = wires.op("NextIteration").input(result).output();
            self.check_error()?;
            let after = self.shape(result);
            if !still_holds(&shapes[i], &after) {
                crate::invalid!(
                    "variable {i} of a loop has shape {} at its start but {after} after an iteration: give shape \
                     invariants",
                    shapes[i]
                );
            }
            let graph = &mut self.build.borrow_mut().graph;
            graph.connect(next, merge.node, 1);
            graph.check_inputs(merge.node)?;
        }
        // The Exit nodes belong to the context around the loop, not to the loop.
        let outside = scope.wiring();
        let exits = sides.iter().map(|side| outside.op("Exit").input(side[0]).output()).collect();
        self.check_error()?;
        Ok(exits)
    }

    fn enter_context(&self, kind: ContextKind) -> Scope {
        let build = &mut *self.build.borrow_mut();
        build.num_contexts += 1;
        let flow = FlowContext {
            id: build.num_contexts,
            parent: self.context.flow.clone(),
            kind,
            pivot: Cell::new(NodeId::new(0)),
            captured: RefCell::default(),
        };
        self.with(|c| {
            c.flow = Some(Rc::new(flow));
            c.control.clear();
        })
    }

    fn set_pivot(&self, pivot: NodeId) {
        if let Some(flow) = &self.context.flow {
            flow.pivot.set(pivot);
        }
    }

    /// Returns a scope for adding the Switch, Merge, Enter and other control-flow nodes of a branch or a loop; nodes of
    /// this scope do not capture their inputs.
    fn wiring(&self) -> Scope {
        self.with(|c| {
            c.is_wiring = true;
            c.control.clear();
            c.colocate_with = None;
        })
    }

    /// Adds a Merge whose second input, the back edge, is connected later.
    fn open_merge(&self, enter: Output, shape: &PartialShape) -> Result<Output> {
        let op = ops::lookup("Merge").ok_or_else(|| Error::unimplemented("loops need the op Merge"))?;
        let mut node =
            Node::new(self.unique_name("Merge"), op).with_attr("T", self.dtype(enter)).with_attr("N", 2i64);
        node.device = self.device_of(&node)?;
        self.check_error()?;
        let build = &mut *self.build.borrow_mut();
        let id = build.graph.add_unconnected(node)?;
        build.graph.connect(enter, id, 0);
        build.shapes.infer_node(&build.graph, id)?;
        build.shapes.set(enter, shape.clone());
        build.shapes.set(id.into(), shape.clone());
        if let Some(flow) = &self.context.flow {
            build.set_context(id, flow.id);
        }
        Ok(id.into())
    }

    /// Captures each value into the context of this scope, and returns the captured values.
    fn capture_all(&self, values: &[Output]) -> Result<Vec<Output>> {
        self.check_error()?;
        values.iter().map(|value| self.capture(*value)).collect()
    }

    /// Captures a node's inputs into the current context and returns the captured values; also adjusts the node's
    /// control inputs `after`. In a loop, control inputs from outside the loop are removed, and a node that depends on
    /// nothing inside the current iteration gets the pivot as a control input.
    pub(super) fn capture_inputs(
        &self,
        inputs: &[Output],
        after: &mut SmallVec<[NodeId; 2]>,
    ) -> Result<SmallVec<[Output; 4]>> {
        let Some(flow) = self.context.flow.as_ref().filter(|_| !self.context.is_wiring) else {
            return Ok(inputs.into());
        };
        let mut own = SmallVec::new();
        let mut is_tied = false;
        for &input in inputs {
            let here = self.capture(input)?;
            is_tied |= here == input || !flow.is_loop();
            own.push(here);
        }
        let build = self.build.borrow();
        if flow.is_within_loop() {
            after.retain(|id| flow.is_in_frame(build.context_of(*id)));
        }
        is_tied |= after.iter().any(|id| build.context_of(*id) == flow.id);
        if !is_tied {
            after.push(flow.pivot.get());
        }
        Ok(own)
    }

    /// Captures `value` into each context between the node of `value` and this scope, outermost context first, and
    /// returns the value captured by the innermost context.
    fn capture(&self, value: Output) -> Result<Output> {
        let (home, is_ref) = {
            let build = self.build.borrow();
            (build.context_of(value.node), build.graph.output_type(value)?.is_ref)
        };
        let mut inward = Vec::new();
        let mut at = self.context.flow.clone();
        while let Some(flow) = at {
            if flow.id == home {
                break;
            }
            at = flow.parent.clone();
            inward.push(flow);
        }
        if home != 0 && inward.last().is_some_and(|outermost| outermost.parent.is_none()) {
            let name = self.build.borrow().graph.output_name(value);
            crate::invalid!("{name} is within another branch or loop, and has no value here");
        }
        let mut value = value;
        while let Some(flow) = inward.pop() {
            let known = flow.captured.borrow().get(&value).copied();
            let here = match known {
                Some(here) => here,
                None => {
                    let here = self.capture_into(&flow, value, is_ref)?;
                    flow.captured.borrow_mut().insert(value, here);
                    here
                }
            };
            value = here;
        }
        Ok(value)
    }

    fn capture_into(&self, flow: &Rc<FlowContext>, value: Output, is_ref: bool) -> Result<Output> {
        let wires = self.wiring().with(|c| c.flow = Some(flow.clone()));
        let here = match &flow.kind {
            ContextKind::Branch { pred, side } => {
                let op = if is_ref { "RefSwitch" } else { "Switch" };
                let node = wires.op(op).input(value).input(*pred).node();
                Output { node, index: *side }
            }
            ContextKind::Loop { frame, parallel_iterations } => {
                let op = if is_ref { "RefEnter" } else { "Enter" };
                let enter = wires.op(op).input(value).attr("frame_name", frame.as_str());
                enter.attr("is_constant", true).attr("parallel_iterations", *parallel_iterations).output()
            }
        };
        self.check_error()?;
        Ok(here)
    }
}

impl FlowContext {
    fn is_within_loop(&self) -> bool {
        self.frame_contexts().any(|(_, is_loop)| is_loop)
    }

    /// Returns whether nodes of the context numbered `context` run in the loop frame of this context: `context` is the
    /// number of this context, or of an enclosing context within the same innermost loop.
    fn is_in_frame(&self, context: u32) -> bool {
        self.frame_contexts().any(|(id, _)| id == context)
    }

    /// Returns the pair (number, true if a loop) for this context and for each enclosing context, up to and including
    /// the innermost loop.
    fn frame_contexts(&self) -> impl Iterator<Item = (u32, bool)> {
        let mut next = Some(self);
        std::iter::from_fn(move || {
            let flow = next?;
            next = if flow.is_loop() { None } else { flow.parent.as_deref() };
            Some((flow.id, flow.is_loop()))
        })
    }
}

/// Returns whether every size in `known`, the declared shape of a loop variable, is also the size in `after`, its shape
/// after an iteration.
fn still_holds(known: &PartialShape, after: &PartialShape) -> bool {
    match (known.dims(), after.dims()) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(known), Some(after)) => {
            known.len() == after.len() && known.iter().zip(after).all(|(k, a)| k.is_none() || k == a)
        }
    }
}
