//! Lowering of functional control flow: branches become Switch and Merge nodes, loops become loop frames.

use super::Draft;
use crate::attr::{AttrValue, FuncAttr};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::topology::Topology;

impl Draft<'_> {
    /// Lowers If and Case. `attrs` names the attributes that hold the branches, in the order of the Switch's outputs;
    /// if `attrs` is empty, the list attribute `branches` holds the branches.
    pub(super) fn lower_branches(&mut self, id: NodeId, attrs: &[&str]) -> Result<()> {
        let node = self.nodes[id.index()].clone();
        let branches: Vec<FuncAttr> = match attrs {
            [] => node.attr("branches")?,
            attrs => attrs.iter().map(|attr| node.attr(attr)).collect::<Result<_>>()?,
        };
        let (types, out): (Vec<DType>, Vec<DType>) = (node.attr("Tin")?, node.attr("Tout")?);
        let controls = self.controls_of_lowered(id)?;
        let mut values = self.values(id)?;
        if values.is_empty() {
            crate::invalid!("{} has no input to choose by", node.op.name());
        }
        let mut choice = values.remove(0);
        let is_if = !attrs.is_empty();
        if is_if {
            choice = self.truth(id, choice)?;
        }
        let switch = |draft: &mut Self, part: &str, dtype: DType, value: Output, controls: Vec<NodeId>| {
            let mut attrs = vec![("T", dtype.into())];
            if !is_if {
                attrs.push(("num_outs", AttrValue::Int(branches.len() as i64)));
            }
            draft.add(
                id,
                part,
                if is_if { "Switch" } else { "_SwitchN" },
                &attrs,
                vec![value, choice],
                controls,
            )
        };
        let choice_type = if is_if { DType::Bool } else { DType::Int32 };
        let pivot = switch(self, "switch_pred", choice_type, choice, controls)?;
        let mut switched = Vec::with_capacity(values.len());
        for (value, dtype) in values.iter().zip(&types) {
            switched.push(switch(self, "switch", *dtype, *value, Vec::new())?);
        }
        let (mut calls, mut executed) = (Vec::new(), Vec::new());
        for (i, branch) in branches.iter().enumerate() {
            let part = match (is_if, i) {
                (true, 0) => "else".to_owned(),
                (true, _) => "then".to_owned(),
                (false, i) => format!("branch{i}"),
            };
            let branch_pivot = vec![Output::new(pivot, i)];
            let branch_pivot = self.add(
                id,
                &format!("pivot_{part}"),
                "Identity",
                &[("T", choice_type.into())],
                branch_pivot,
                Vec::new(),
            )?;
            let inputs = switched.iter().map(|s| Output::new(*s, i)).collect();
            let call = self.call(id, &part, branch, (&types, &out), inputs, vec![branch_pivot])?;
            let done = [("T", choice_type.into())];
            executed.push(self.add(
                id,
                &format!("{part}_executed"),
                "Identity",
                &done,
                vec![branch_pivot.into()],
                vec![call],
            )?);
            calls.push(call);
        }
        let merge = |draft: &mut Self, part: &str, dtype: DType, inputs: Vec<Output>| {
            let attrs = [("T", dtype.into()), ("N", AttrValue::Int(inputs.len() as i64))];
            draft.add(id, part, "Merge", &attrs, inputs, Vec::new())
        };
        let mut outputs = Vec::with_capacity(out.len());
        for (i, dtype) in out.iter().enumerate() {
            let inputs = calls.iter().map(|call| Output::new(*call, i)).collect();
            outputs.push(merge(self, "merge", *dtype, inputs)?.into());
        }
        let ran =
            merge(self, "branch_executed", choice_type, executed.into_iter().map(Output::from).collect())?;
        self.replace(id, outputs, vec![ran])
    }

    /// Lowers While to a loop frame. Loop variables that the body returns unchanged become constants of the frame.
    pub(super) fn lower_loop(&mut self, id: NodeId) -> Result<()> {
        let node = self.nodes[id.index()].clone();
        let types: Vec<DType> = node.attr("T")?;
        let (cond, body): (FuncAttr, FuncAttr) = (node.attr("cond")?, node.attr("body")?);
        let parallel: i64 = node.attr("parallel_iterations")?;
        let controls = self.controls_of_lowered(id)?;
        let constant = self.constants_of(&body, &types)?;
        // A loop whose variables are all constant has no pivot that could start iterations, so a kernel runs the loop.
        if constant.iter().all(|c| *c) {
            return Ok(());
        }
        let values = self.values(id)?;
        let typed = |dtype: DType| [("T", AttrValue::Type(dtype))];
        let mut merges: Vec<Option<NodeId>> = Vec::with_capacity(types.len());
        let mut state: Vec<Output> = Vec::with_capacity(types.len());
        for ((value, dtype), constant) in values.iter().zip(&types).zip(&constant) {
            let attrs = [
                ("T", AttrValue::Type(*dtype)),
                ("frame_name", node.name.to_string().into()),
                ("is_constant", AttrValue::Bool(*constant)),
                ("parallel_iterations", AttrValue::Int(parallel)),
            ];
            let enter = self.add(id, "enter", "Enter", &attrs, vec![*value], controls.clone())?;
            if *constant {
                merges.push(None);
                state.push(enter.into());
            } else {
                // The second input of the Merge is added when its NextIteration node exists.
                let attrs = [("T", AttrValue::Type(*dtype)), ("N", AttrValue::Int(2))];
                let merge = self.add(id, "merge", "Merge", &attrs, vec![enter.into()], Vec::new())?;
                merges.push(Some(merge));
                state.push(merge.into());
            }
        }
        let controls = self.condition_controls(&cond, &merges)?;
        let bool_out = self.graph.library.lookup(&cond.name)?.output_types(&cond.attrs)?;
        let [cond_type] = bool_out[..] else {
            crate::invalid!("the condition {} has {} outputs, not 1", cond.name, bool_out.len());
        };
        let cond_call = self.call(id, "cond", &cond, (&types, &[cond_type]), state.clone(), controls)?;
        let truth = self.truth(id, cond_call.into())?;
        let after = self.effects_of(&cond, cond_call)?;
        let again = self.add(id, "LoopCond", "LoopCond", &[], vec![truth], after)?;
        let mut exits: Vec<Output> = Vec::with_capacity(types.len());
        let mut pivot = None;
        let mut inputs = Vec::with_capacity(types.len());
        for (i, merge) in merges.iter().enumerate() {
            let Some(merge) = merge else {
                inputs.push(state[i]);
                exits.push(values[i]);
                continue;
            };
            let attrs = typed(types[i]);
            let switch =
                self.add(id, "switch", "Switch", &attrs, vec![(*merge).into(), again.into()], Vec::new())?;
            let into = Output::new(switch, 1);
            if pivot.is_none() {
                pivot =
                    Some(self.add(id, "loop_body_control", "Identity", &attrs, vec![into], Vec::new())?);
            }
            inputs.push(into);
            exits.push(self.add(id, "exit", "Exit", &attrs, vec![switch.into()], Vec::new())?.into());
        }
        let body_call =
            self.call(id, "body", &body, (&types, &types), inputs, pivot.into_iter().collect())?;
        // The NextIteration nodes wait for the side effects of the body call.
        let after = self.effects_of(&body, body_call)?;
        for (i, merge) in merges.iter().enumerate() {
            let Some(merge) = merge else { continue };
            let from = vec![Output::new(body_call, i)];
            let next =
                self.add(id, "next_iteration", "NextIteration", &typed(types[i]), from, after.clone())?;
            self.inputs[merge.index()].push(next.into());
        }
        let ended =
            exits.iter().zip(&constant).filter(|(_, constant)| !**constant).map(|(exit, _)| exit.node);
        let ended: Vec<NodeId> = ended.collect();
        self.order_constants(id, &mut exits, &constant, &ended)?;
        self.replace(id, exits, ended)
    }

    /// Returns the control inputs for the nodes of the condition that have no inputs, because these nodes must run once
    /// per iteration. One Merge of a loop variable is enough, because all loop variables of an iteration are alive or
    /// dead together. The Merge of the first variable that the condition reads is preferred, because the readers of
    /// these nodes often wait for that Merge anyway.
    fn condition_controls(&mut self, cond: &FuncAttr, merges: &[Option<NodeId>]) -> Result<Vec<NodeId>> {
        let body = self.body(cond)?;
        let topology = Topology::new(&body.graph);
        let mut read = merges.iter().zip(&body.args).filter(|(_, arg)| !topology.consumers(**arg).is_empty());
        let of_read = read.find_map(|(merge, _)| *merge);
        Ok(of_read.or_else(|| merges.iter().flatten().next().copied()).into_iter().collect())
    }

    /// Returns the nodes that run after all side effects of the call `call` of `func`; empty if the function has no
    /// side effects.
    fn effects_of(&mut self, func: &FuncAttr, call: NodeId) -> Result<Vec<NodeId>> {
        let body = self.body(func)?;
        let is_port = |inner: NodeId| body.args.contains(&inner) || body.returns.contains(&inner);
        let acts = |(inner, node): (NodeId, &Node)| node.op.is_stateful() && !is_port(inner);
        let has_effects = body.graph.nodes().any(acts) || !body.control_returns.is_empty();
        Ok(if has_effects { vec![call] } else { Vec::new() })
    }

    /// Replaces the entry of each loop constant in `exits` by an Identity that waits for the nodes `ended`, the exits
    /// of the loop variables.
    fn order_constants(
        &mut self,
        id: NodeId,
        exits: &mut [Output],
        constant: &[bool],
        ended: &[NodeId],
    ) -> Result<()> {
        for (exit, _) in exits.iter_mut().zip(constant).filter(|(_, constant)| **constant) {
            let attrs = [("T", self.type_of(*exit)?.dtype.into())];
            *exit = self.add(id, "exit", "Identity", &attrs, vec![*exit], ended.to_vec())?.into();
        }
        Ok(())
    }

    /// Returns for each loop variable whether the body returns it unchanged.
    fn constants_of(&mut self, body: &FuncAttr, types: &[DType]) -> Result<Vec<bool>> {
        let def = self.graph.library.lookup(&body.name)?;
        let (args, returns) = (def.arg_types(&body.attrs)?, def.output_types(&body.attrs)?);
        if args != types || returns != types {
            crate::invalid!(
                "the body {} turns {args:?} into {returns:?}, the loop is of {types:?}",
                body.name
            );
        }
        if def.args.len() != types.len() || def.outputs.len() != types.len() {
            return Ok(vec![false; types.len()]);
        }
        let same =
            def.args.iter().zip(&def.outputs).map(|(arg, out)| def.returns.get(&out.name) == Some(&arg.name));
        Ok(same.collect())
    }

    /// Adds a node that calls `func`, a loop's condition or body, or a branch.
    fn call(
        &mut self,
        id: NodeId,
        part: &str,
        func: &FuncAttr,
        (types, out): (&[DType], &[DType]),
        inputs: Vec<Output>,
        controls: Vec<NodeId>,
    ) -> Result<NodeId> {
        let stateful = self.graph.library.lookup(&func.name)?.is_stateful;
        let op = if stateful { "StatefulPartitionedCall" } else { "PartitionedCall" };
        let attrs =
            [("Tin", types.to_vec().into()), ("Tout", out.to_vec().into()), ("f", func.clone().into())];
        self.add(id, part, op, &attrs, inputs, controls)
    }

    /// Returns the value as a bool, through a ToBool node if it has another type.
    fn truth(&mut self, id: NodeId, value: Output) -> Result<Output> {
        let port = self.type_of(value)?;
        if port.dtype == DType::Bool {
            return Ok(value);
        }
        let bool_of = self.add(id, "to_bool", "ToBool", &[("T", port.dtype.into())], vec![value], Vec::new());
        bool_of.map(Output::from).map_err(|e: Error| e)
    }
}
