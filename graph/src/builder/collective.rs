//! Builders of collectives between the devices of a group, over all tasks.

use super::{Forward, Scope};
use crate::dtype::DType;
use crate::graph::Output;
use crate::ops::collective::gradient_of_receiver;

/// The devices that run collectives together: all nodes with the same group key, one on each device. The size and the key
/// are `int32` scalars in host memory.
#[derive(Clone, Copy, Debug)]
pub struct CollectiveGroup {
    /// The number of devices.
    pub size: Output,
    pub key: Output,
}

/// One collective of a group: the nodes with the same instance key, one for each device of the group.
#[derive(Clone, Copy, Debug)]
pub struct Collective {
    pub group: CollectiveGroup,
    /// The instance key, an `int32` scalar in host memory.
    pub instance: Output,
    /// The time in seconds after which a step fails that waits for other devices; 0 for the default of the server.
    pub timeout_seconds: f32,
}

/// The function that a reduction applies to the elements of all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveReduction {
    Sum,
    /// The sum divided by the size of the group.
    Mean,
    Product,
    Min,
    Max,
}

impl CollectiveGroup {
    /// Returns the collective of this group with an instance key, and with the server's time limit.
    pub fn instance(self, instance: Output) -> Collective {
        Collective { group: self, instance, timeout_seconds: 0.0 }
    }
}

impl CollectiveReduction {
    /// Returns the values of the attributes `merge_op` and `final_op`: the function that combines two elements, and the
    /// function applied to the result.
    fn functions(self) -> (&'static str, &'static str) {
        match self {
            CollectiveReduction::Sum => ("Add", "Id"),
            CollectiveReduction::Mean => ("Add", "Div"),
            CollectiveReduction::Product => ("Mul", "Id"),
            CollectiveReduction::Min => ("Min", "Id"),
            CollectiveReduction::Max => ("Max", "Id"),
        }
    }
}

impl Scope {
    /// Returns the group of `size` devices with the key `key`, as constants.
    pub fn collective_group(&self, size: i32, key: i32) -> CollectiveGroup {
        CollectiveGroup { size: self.constant(size), key: self.constant(key) }
    }

    /// Returns the reduction of the tensors `x` of all devices, which have the same type and shape.
    pub fn all_reduce(&self, x: Output, with: Collective, reduction: CollectiveReduction) -> Output {
        self.reduction("CollectiveReduceV2", x, with, reduction)
    }

    /// Returns this device's rows of the reduction of the tensors `x` of all devices: the rows are divided equally
    /// between the devices, in the order of their names.
    pub fn reduce_scatter(&self, x: Output, with: Collective, reduction: CollectiveReduction) -> Output {
        self.reduction("CollectiveReduceScatterV2", x, with, reduction)
    }

    /// Returns the tensors `x` of all devices, which have the same type and shape, concatenated along the first axis in
    /// the order of the devices' names.
    pub fn all_gather(&self, x: Output, with: Collective) -> Output {
        self.exchange("CollectiveGatherV2", x, with)
    }

    /// Returns row `r` of the tensor `x` of each device, where `r` is this device's position in the order of the devices'
    /// names. The first axis of `x` has one row for each device.
    pub fn all_to_all(&self, x: Output, with: Collective) -> Output {
        self.exchange("CollectiveAllToAllV2", x, with)
    }

    /// Sends `x` to all other devices of the group, and returns it.
    pub fn broadcast_send(&self, x: Output, with: Collective) -> Output {
        self.exchange("CollectiveBcastSendV2", x, with)
    }

    /// Returns the tensor that another device of the group sends, of type `dtype` and the shape in the integer vector
    /// `shape`.
    pub fn broadcast_recv(&self, dtype: DType, shape: Output, with: Collective) -> Output {
        let call = self.op("CollectiveBcastRecvV2").input(with.group.size).input(with.group.key);
        let call = call.input(with.instance).input(shape).attr("T", dtype);
        call.attr("timeout_seconds", with.timeout_seconds).output()
    }

    /// Adds a receiver's part of the gradient of a broadcast: the gradient of the source is the sum of the gradients of
    /// all members. `received` is the output of a `CollectiveBcastRecv` or `CollectiveBcastRecvV2`, and `gradient` the
    /// gradient that arrived at it. Returns the sum, which must be computed in each step that computes the gradient of
    /// the source.
    pub fn broadcast_gradient(&self, received: Output, gradient: Output) -> Output {
        let forward = self.read(|graph, _| Forward {
            id: received.node,
            node: graph.node(received.node).clone(),
            inputs: graph.inputs(received.node),
        });
        let Some(forward) = forward else { return gradient };
        match gradient_of_receiver(self, &forward, gradient) {
            Ok(sum) => sum,
            Err(error) => self.failed(error.at_node(&forward.node.name)),
        }
    }

    fn reduction(&self, op: &str, x: Output, with: Collective, reduction: CollectiveReduction) -> Output {
        let (merge, last) = reduction.functions();
        let call = self.op(op).input(x).input(with.group.size).input(with.group.key).input(with.instance);
        let call = call.input(Vec::<Output>::new()).attr("merge_op", merge).attr("final_op", last);
        call.attr("timeout_seconds", with.timeout_seconds).output()
    }

    fn exchange(&self, op: &str, x: Output, with: Collective) -> Output {
        let call = self.op(op).input(x).input(with.group.size).input(with.group.key).input(with.instance);
        let call = if call.takes_attr("Nordering_token") { call.input(Vec::<Output>::new()) } else { call };
        call.attr("timeout_seconds", with.timeout_seconds).output()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::shape::PartialShape;

    #[test]
    fn outputs_have_the_shapes_of_the_operations() -> Result<()> {
        let s = Scope::new();
        let group = s.collective_group(2, 7);
        let with = |key: i32| Collective { timeout_seconds: 1.5, ..group.instance(s.constant(key)) };
        let x = s.zeros(DType::Float, &[4, 3]);
        let pairs = s.zeros(DType::Float, &[2, 5]);
        let shape = s.constant_vector(&[4i32, 3]);
        let outputs = [
            (s.all_reduce(x, with(1), CollectiveReduction::Mean), [4, 3]),
            (s.reduce_scatter(x, with(2), CollectiveReduction::Max), [2, 3]),
            (s.all_gather(x, with(3)), [8, 3]),
            (s.all_to_all(pairs, with(4)), [2, 5]),
            (s.broadcast_send(x, with(5)), [4, 3]),
            (s.broadcast_recv(DType::Float, shape, with(6)), [4, 3]),
        ];
        for (output, shape) in outputs {
            assert_eq!(s.shape(output), PartialShape::from(shape));
        }
        let graph = s.finish()?;
        let mean = graph.node(outputs[0].0.node);
        let functions = [mean.attr::<String>("merge_op")?, mean.attr::<String>("final_op")?];
        assert_eq!(functions, ["Add", "Div"]);
        assert_eq!(graph.node(outputs[5].0.node).attr::<f32>("timeout_seconds")?, 1.5);
        Ok(())
    }
}
