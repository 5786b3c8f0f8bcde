//! Lowering of `SymbolicGradient`: the node is replaced by the gradient function that the library registers for the
//! function, or by the backward pass of the function's body. The function may also be an op.

use super::Draft;
use crate::attr::FuncAttr;
use crate::builder::Scope;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::function::Body;
use crate::graph::{NodeId, Output};
use crate::ops::spec::ArgType;
use crate::ops::{self, Op};
use crate::passes::prune;

impl Draft<'_> {
    /// Replaces a SymbolicGradient node by the gradient of its function. The inputs are the function's arguments and
    /// the gradients of its outputs; the outputs are the gradients of its arguments.
    ///
    /// # Errors
    /// `Unimplemented` for a function whose gradient contains the same gradient; the errors of building gradients.
    pub(super) fn lower_gradient(&mut self, id: NodeId) -> Result<()> {
        let func: FuncAttr = self.nodes[id.index()].attr("f")?;
        let named = self.graph.library.gradients().iter().find(|(function, _)| *function == func.name);
        let source = match named {
            Some((_, gradient)) => FuncAttr { name: gradient.clone(), attrs: func.attrs },
            None => func,
        };
        if self.is_within(id, &source) {
            let name = &source.name;
            return Err(Error::unimplemented(format!("a gradient that needs function {name} within itself")));
        }
        if named.is_some() {
            let body = self.body(&source)?;
            return self.inline_body(id, source, &body);
        }
        let gradient = match ops::lookup(&source.name) {
            Some(op) if self.graph.library.lookup(&source.name).is_err() => {
                gradient_of(&body_of(op, &source)?)?
            }
            _ => gradient_of(&*self.body(&source)?)?,
        };
        self.inline_body(id, source, &gradient)
    }
}

/// Returns the body of the function that calls an op with the attributes of `call`.
fn body_of(op: &Op, call: &FuncAttr) -> Result<Body> {
    op.check_attrs(&call.attrs)?;
    let scope = Scope::new();
    let arg_types: Vec<DType> = op.input_types(&call.attrs)?.iter().map(|port| port.dtype).collect();
    let argument = |(index, dtype): (usize, &DType)| -> Output {
        scope.op("_Arg").attr("T", *dtype).attr("index", index as i64).output()
    };
    let inputs: Vec<Output> = arg_types.iter().enumerate().map(argument).collect();
    let (mut node, mut rest) = (scope.op(op.name()), &inputs[..]);
    for arg in &op.inputs {
        let (given, more) = rest.split_at(op.arg_count(arg, &call.attrs)?);
        let is_list = arg.number_attr.is_some() || matches!(arg.ty, ArgType::List(_));
        node = if is_list { node.input(given) } else { node.input(given[0]) };
        rest = more;
    }
    for (name, value) in call.attrs.iter() {
        node = node.attr(name, value.clone());
    }
    let outputs = node.outputs();
    let returned = |(index, output): (usize, &Output)| {
        scope.op("_Retval").input(*output).attr("index", index as i64).node()
    };
    let returns = outputs.iter().enumerate().map(returned).collect();
    let return_types = op.output_types(&call.attrs)?.iter().map(|port| port.dtype).collect();
    let args = inputs.iter().map(|input| input.node).collect();
    Ok(Body { graph: scope.finish()?, args, returns, control_returns: Vec::new(), arg_types, return_types })
}

/// Returns the body of the gradient function. The gradient of an argument that no output depends on is zeros.
fn gradient_of(of: &Body) -> Result<Body> {
    let scope = Scope::over(of.graph.clone())?;
    let argument =
        |index: usize, dtype| scope.op("_Arg").attr("T", dtype).attr("index", index as i64).output();
    let inputs: Vec<Output> = of.args.iter().map(|arg| (*arg).into()).collect();
    let (mut args, mut arg_types) = (of.args.clone(), of.arg_types.clone());
    let (mut ys, mut arriving) = (Vec::new(), Vec::new());
    for (returned, dtype) in of.returns.iter().zip(&of.return_types) {
        let gradient: Output = argument(args.len(), *dtype);
        args.push(gradient.node);
        arg_types.push(*dtype);
        if dtype.is_differentiable() {
            ys.extend(of.graph.inputs(*returned).first());
            arriving.push(Some(gradient));
        }
    }
    let found = scope.gradients(&ys, &inputs, &arriving)?;
    let mut returns = Vec::with_capacity(inputs.len());
    for (i, (gradient, input)) in found.into_iter().zip(&inputs).enumerate() {
        let gradient = gradient.unwrap_or_else(|| scope.zeros_like(*input));
        returns.push(scope.op("_Retval").input(gradient).attr("index", i as i64).node());
    }
    let graph = scope.finish()?;
    let wanted: Vec<NodeId> = args.iter().chain(&returns).copied().collect();
    let pruned = prune(&graph, &wanted)?;
    let kept = |ids: &[NodeId]| -> Result<Vec<NodeId>> {
        let find = |id: &NodeId| pruned.find(&graph.node(*id).name);
        ids.iter()
            .map(|id| find(id).ok_or_else(|| Error::invalid("an end of the gradient is gone")))
            .collect()
    };
    let (args, returns) = (kept(&args)?, kept(&returns)?);
    let return_types = of.arg_types.clone();
    Ok(Body { graph: pruned, args, returns, control_returns: Vec::new(), arg_types, return_types })
}
