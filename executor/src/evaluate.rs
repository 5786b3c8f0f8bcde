//! Evaluation of nodes on the host from constant inputs, for constant folding.

use device::Device;
use device::single_node;
use device::value::Value;
use device::{Error, Result};
use graph::ops::Evaluate;
use graph::{AttrList, AttrValue, Node, Role, Tensor};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Evaluates nodes whose op is stateless and whose CPU kernel is synchronous.
pub struct HostEvaluator {
    device: Arc<Device>,
}

impl HostEvaluator {
    /// Creates an evaluator that runs the kernels of this device, whose tensors are in host memory.
    pub fn new(device: Arc<Device>) -> HostEvaluator {
        HostEvaluator { device }
    }

    fn run(&self, node: &Node, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
        let inputs = inputs.iter().cloned().map(Value::Host).collect();
        let outputs = catch_unwind(AssertUnwindSafe(|| single_node::run(&self.device, node, inputs)))
            .unwrap_or_else(|payload| Err(Error::panicked(node, payload.as_ref())))?;
        outputs
            .into_iter()
            .map(|output| match output {
                Value::Host(tensor) => Ok(tensor),
                other => Err(Error::internal(format!("no host tensor but {other:?}"))),
            })
            .collect()
    }
}

impl Evaluate for HostEvaluator {
    fn evaluate(&self, node: &Node, inputs: &[Tensor]) -> Option<graph::Result<Vec<Tensor>>> {
        if node.op.is_stateful() || node.op.role() != Role::Compute {
            return None;
        }
        if node
            .attrs
            .iter()
            .any(|(_, value)| matches!(value, AttrValue::Func(_) | AttrValue::List(AttrList::Func(_))))
        {
            return None;
        }
        let by_value = |types: graph::Result<graph::ops::PortTypes>| {
            types.is_ok_and(|types| types.iter().all(|port| !port.is_ref))
        };
        if !by_value(node.input_types()) || !by_value(node.output_types()) {
            return None;
        }
        self.device.find_kernel(node)?;
        match self.run(node, inputs) {
            Err(error) if error.code() == graph::Code::Unimplemented => None,
            result => Some(result.map_err(|error| match error.at_node(&node.name) {
                Error::Graph(error) => error,
                Error::Node { code, node, message } => graph::Error::Node { code, node, message },
                other => graph::Error::Invalid { code: other.code(), message: other.to_string() },
            })),
        }
    }
}

impl fmt::Debug for HostEvaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostEvaluator")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::DType;

    #[test]
    fn nodes_with_a_kernel_are_folded_and_errors_reported() -> Result<()> {
        let op = graph::ops::lookup("AddV2").ok_or_else(|| Error::internal("AddV2 is not in the table"))?;
        let node = Node::new("sum", op).with_attr("T", DType::Float);
        let evaluator = HostEvaluator::new(Arc::new(kernels::lone_device()));
        let sum = evaluator.evaluate(&node, &[Tensor::scalar(1.0f32), Tensor::scalar(2.0f32)]);
        assert_eq!(sum, Some(Ok(vec![Tensor::scalar(3.0f32)])));
        let wrong = evaluator.evaluate(&node, &[Tensor::scalar(1.0f32), Tensor::scalar(2i32)]);
        assert_eq!(wrong.and_then(|r| r.err()).map(|e| e.code()), Some(graph::Code::InvalidArgument));
        let none = Node::new("sum", op).with_attr("T", DType::Resource);
        assert!(evaluator.evaluate(&none, &[]).is_none());
        Ok(())
    }
}
