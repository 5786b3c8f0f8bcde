//! Ops that forward their inputs.

use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;

/// The traits of ops that return their input itself, even if the input is a reference. The op `Snapshot` does not have
/// these traits, because it returns a copy of the variable's value.
pub(super) const FORWARDS_REFERENCE: Traits = Traits { passes_reference: true, ..Traits::NONE };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Identity",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Defined(pass),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "IdentityN",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: list(type) >= 1"],
        infer: same,
        gradient: Gradient::Defined(pass),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "StopGradient",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Leaf,
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "PreventGradient",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "message: string = ''"],
        infer: same,
        gradient: Gradient::Defined(prevented),
        traits: FORWARDS_REFERENCE,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefIdentity",
        inputs: &["input: Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Defined(pass),
        traits: Traits { allows_uninitialized_input: true, ..FORWARDS_REFERENCE },
        ..OpDef::NEW
    },
    OpDef {
        name: "GuaranteeConst",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeepCopy",
        inputs: &["x: T"],
        outputs: &["y: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Snapshot",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        gradient: Gradient::Defined(pass),
        ..OpDef::NEW
    },
    OpDef { name: "NoOp", gradient: Gradient::Leaf, ..OpDef::NEW },
    OpDef { name: "SyncDevice", gradient: Gradient::Leaf, traits: Traits::STATEFUL, ..OpDef::NEW },
    OpDef {
        name: "Fact",
        outputs: &["fact: string"],
        infer: super::check::scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "CheckNumerics",
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        attrs: &["T: {bfloat16, half, float, double}", "message: string"],
        infer: same,
        gradient: Gradient::Defined(check_numerics),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CheckNumericsV2",
        inputs: &["tensor: T"],
        outputs: &["output: T"],
        attrs: &["T: {bfloat16, half, float, double}", "message: string"],
        infer: same,
        gradient: Gradient::Defined(check_numerics),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

/// Gives each output the shape of the corresponding input and, if it is a resource handle, the dtype and shape of its
/// variable.
pub(super) fn same(infer: &mut Infer<'_>) -> Result<()> {
    for i in 0..infer.num_outputs() {
        let shape = infer.input(i);
        infer.set(i, shape);
        if let Some((dtype, shape)) = infer.handle(i) {
            infer.set_handle(i, dtype, shape);
        }
    }
    Ok(())
}

/// Forwards the gradient of each output to the corresponding input.
pub(super) fn pass(_: &Scope, _: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    Ok(dy.to_vec())
}

fn prevented(_: &Scope, forward: &Forward, _: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let reason = forward.attr::<String>("message")?;
    Err(Error::invalid(format!("Gradient explicitly disabled. Reason: {reason}")).at_node(&forward.node.name))
}

/// Gradient of CheckNumerics: another CheckNumerics, which checks the gradient.
fn check_numerics(s: &Scope, forward: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let message = format!("the gradient that reached {} is not finite", forward.node.name);
    let checked =
        dy[0].map(|dy| s.op(forward.node.op.name()).input(dy).attr("message", message.as_str()).output());
    Ok(vec![checked])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::lookup;

    #[test]
    fn prevent_gradient_names_its_reason() -> Result<()> {
        let s = Scope::new();
        let x = s
            .op("VariableV2")
            .attr("dtype", crate::DType::Float)
            .attr("shape", crate::PartialShape::scalar());
        let y = s.op("PreventGradient").input(x.output()).attr("message", "not smooth").output();
        let graph = s.finish()?;
        let forward = Forward { id: y.node, node: graph.node(y.node).clone(), inputs: graph.inputs(y.node) };
        let op = lookup("PreventGradient").ok_or_else(|| Error::invalid("no op"))?;
        let Gradient::Defined(gradient) = op.def.gradient else { return Err(Error::invalid("no gradient")) };
        let error = gradient(&s, &forward, &[Some(y)]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("not smooth"), "{error}");
        Ok(())
    }
}
