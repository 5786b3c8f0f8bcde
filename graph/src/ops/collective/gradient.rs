//! Gradients of collectives. Each gradient is a collective of the same group, in which all members take part; its
//! instance key is derived from the instance key of the forward collective. The node of the gradient is on the device
//! of the forward node, because the members of a group are devices.

use crate::attr::AttrValue;
use crate::builder::{Call, Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::node::Node;
use crate::ops::broadcast::arrived;
use crate::ops::shape::first_only;

type Gradients = Result<Vec<Option<Output>>>;

/// The offset from an instance key to the instance key of the collective's first gradient; additions wrap around.
const GRADIENT: i32 = 0x3c6e_f372;
/// The offset from the instance key of one gradient of a forward node to that of the next gradient.
const NEXT_GRADIENT: i32 = 0x1b87_3593;

/// The attribute by which the node of a gradient names its forward node.
const GRADIENT_OF: &str = "_gradient_of";

/// Returns the gradient of a reduction: the sum of the members' gradients, divided by their number if the forward op
/// divides its sum.
pub(super) fn of_reduce(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    check_sum(forward, "merge_op")?;
    let instance = Instance::of(scope, forward)?;
    let sum = instance.sum(arrived(forward, gradients)?, &forward.attr::<String>("final_op")?)?;
    Ok(instance.only_first(sum))
}

/// Returns the gradient of a reduce-scatter: the members' gradients, concatenated. Gradients of type `bfloat16` are
/// gathered as `float`, because gathers do not support `bfloat16`.
pub(super) fn of_reduce_scatter(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    check_sum(forward, "merge_op")?;
    let instance = Instance::of(scope, forward)?;
    let (scope, arrived) = (&instance.scope, arrived(forward, gradients)?);
    let dtype = scope.dtype(arrived);
    let gathered_type = if dtype == DType::BFloat16 { DType::Float } else { dtype };
    let mut own = scope.cast(arrived, gathered_type);
    if forward.attr::<String>("final_op")? == "Div" {
        own = scope.div(own, scope.cast(instance.group_size, gathered_type));
    }
    let all = instance.call("CollectiveGatherV2", own)?.output();
    Ok(instance.only_first(scope.cast(all, dtype)))
}

/// Returns the gradient of a gather: each member gets the sum of the gradients of its own rows.
pub(super) fn of_gather(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let instance = Instance::of(scope, forward)?;
    let call = instance.call("CollectiveReduceScatterV2", arrived(forward, gradients)?)?;
    Ok(instance.only_first(call.attr("merge_op", "Add").attr("final_op", "Id").output()))
}

/// Returns the gradient of an all-to-all, which is an all-to-all.
pub(super) fn of_all_to_all(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let instance = Instance::of(scope, forward)?;
    Ok(instance.only_first(instance.call("CollectiveAllToAllV2", arrived(forward, gradients)?)?.output()))
}

/// Returns the gradient of a broadcast's source: the sum of the gradients of all members. A receiver contributes its
/// gradient by [`Scope::broadcast_gradient`].
pub(super) fn of_broadcast(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let instance = Instance::of(scope, forward)?;
    Ok(instance.only_first(instance.sum(arrived(forward, gradients)?, "Id")?))
}

/// Returns the gradient of a sum within the subgroups of a communicator.
pub(super) fn of_reduce_v3(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    check_sum(forward, "reduction")?;
    within_subgroups(scope, forward, gradients)
}

/// Returns the gradient of an op of a communicator whose gradient is computed by the same op, in the same subgroups.
pub(super) fn within_subgroups(scope: &Scope, forward: &Forward, gradients: &[Option<Output>]) -> Gradients {
    let beside = scope.colocate_with(forward.id);
    let mut call = beside.op(forward.node.op.name()).input(arrived(forward, gradients)?);
    call = call.input(forward.input(1)).input(forward.input(2));
    for name in ["reduction", "timeout_seconds"] {
        if call.takes_attr(name) {
            call = call.attr(name, forward.attr::<AttrValue>(name)?);
        }
    }
    Ok(vec![Some(call.output()), None, None])
}

/// Checks that a reduction is a sum; other functions have no gradient.
fn check_sum(forward: &Forward, attr: &str) -> Result<()> {
    let function: String = forward.attr(attr)?;
    if function == "Add" {
        return Ok(());
    }
    let op = format!("{} ({attr} {function})", forward.node.op.name());
    Err(Error::NoGradient { node: forward.node.name.to_string(), op })
}

/// The collective that computes a gradient: its group size, group key and instance key, which are outputs of type
/// `int32`.
struct Instance<'a> {
    forward: &'a Forward,
    /// The scope of the gradient's nodes.
    scope: Scope,
    group_size: Output,
    group_key: Output,
    instance_key: Output,
}

impl<'a> Instance<'a> {
    /// Returns the instance of the next gradient of a forward node. Members with the same forward instance get the same
    /// keys, if they build equally many gradients of it.
    fn of(scope: &Scope, forward: &'a Forward) -> Result<Instance<'a>> {
        let scope = scope.colocate_with(forward.id);
        let added = GRADIENT.wrapping_add(NEXT_GRADIENT.wrapping_mul(gradients_before(&scope, forward)));
        let first = forward.node.op.inputs.iter().position(|input| input.name == "group_size");
        let [group_size, group_key, instance_key] = match first {
            Some(first) => {
                let instance_key = scope.add(forward.input(first + 2), scope.constant(added));
                [forward.input(first), forward.input(first + 1), instance_key]
            }
            None => {
                let instance_key = key(forward, "instance_key")?.wrapping_add(added);
                [key(forward, "group_size")?, key(forward, "group_key")?, instance_key]
                    .map(|value| scope.constant(value))
            }
        };
        Ok(Instance { forward, scope, group_size, group_key, instance_key })
    }

    /// Starts the gradient's node, of an op that takes its keys as inputs.
    fn call<'s>(&'s self, op: &'s str, x: Output) -> Result<Call<'s>> {
        let call = self.scope.op(op).input(x).input(self.group_size).input(self.group_key);
        let call = call.input(self.instance_key).input(Vec::new());
        let hint = self.forward.attr::<AttrValue>("communication_hint")?;
        let timeout = self.forward.attr::<AttrValue>("timeout_seconds")?;
        let call = call.attr("communication_hint", hint).attr("timeout_seconds", timeout);
        Ok(call.attr(GRADIENT_OF, &*self.forward.node.name))
    }

    /// Adds the sum of the tensors of all members, divided by the number of members if `final_op` is `Div`.
    fn sum(&self, x: Output, final_op: &str) -> Result<Output> {
        let call = self.call("CollectiveReduceV2", x)?;
        Ok(call.attr("merge_op", "Add").attr("final_op", final_op).output())
    }

    /// Returns the gradients of the node's inputs: `gradient` for the first input, `None` for all others.
    fn only_first(&self, gradient: Output) -> Vec<Option<Output>> {
        first_only(self.forward, Some(gradient))
    }
}

/// Returns the value of an integer attribute, which must fit `int32`.
fn key(forward: &Forward, name: &str) -> Result<i32> {
    let value = forward.attr::<i64>(name)?;
    i32::try_from(value).map_err(|_| Error::invalid(format!("{name} is {value}, not an int32")))
}

/// Returns the number of gradients of a forward node that the graph already has.
fn gradients_before(scope: &Scope, forward: &Forward) -> i32 {
    let name = AttrValue::from(&*forward.node.name);
    let is_gradient = |node: &Node| node.attrs.get(GRADIENT_OF) == Some(&name);
    scope.read(|graph, _| graph.nodes().filter(|(_, node)| is_gradient(node)).count()).unwrap_or(0) as i32
}

/// Adds a receiver's part of the gradient of a broadcast, for [`Scope::broadcast_gradient`].
pub(crate) fn of_receiver(scope: &Scope, forward: &Forward, gradient: Output) -> Result<Output> {
    Instance::of(scope, forward)?.sum(gradient, "Id")
}
