//! Gradients in TensorFlow's conditional accumulators, named like those of its `SyncReplicasOptimizer`.

use crate::gradient::Gradient;
use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};

/// One accumulator for each variable, on the variable's device.
#[derive(Clone, Debug)]
pub(crate) struct Accumulators {
    all: Vec<Accumulator>,
    /// The number of gradients that an update needs in each accumulator, an `int32` scalar to be fed.
    pub(super) required: Output,
    /// The number of tokens that an update enqueues for workers, an `int32` vector of one element to be fed.
    pub(super) tokens: Output,
    /// Sets the accumulators' step to the global step: they drop gradients of earlier steps from then on.
    pub(super) set_steps: NodeId,
}

#[derive(Clone, Debug)]
struct Accumulator {
    /// The handle node of the variable whose gradients this accumulator sums; both are on one device.
    variable: NodeId,
    handle: Output,
    is_sparse: bool,
    dtype: DType,
    /// The number of gradients in the accumulator, an `int32` scalar.
    count: Output,
    /// Removes all gradients from the accumulator.
    clear: NodeId,
}

impl Accumulator {
    fn new(scope: &Scope, variable: &Variable, is_sparse: bool) -> Accumulator {
        let beside = scope.colocate_with(variable.handle.node);
        let dtype = variable.dtype;
        let (op, shape) = match is_sparse {
            true => ("SparseConditionalAccumulator", PartialShape::unknown()),
            false => ("ResourceConditionalAccumulator", PartialShape::from(&variable.shape)),
        };
        let handle = beside
            .op(op)
            .name(&format!("{}/grad_accum", variable.name))
            .attr("dtype", dtype)
            .attr("shape", shape)
            .attr("shared_name", format!("{}:0/grad_accum", variable.name))
            .output();
        let variable = variable.handle.node;
        let mut accumulator =
            Accumulator { variable, handle, is_sparse, dtype, count: handle, clear: handle.node };
        accumulator.count = beside.op(&accumulator.op_name("NumAccumulated", false)).input(handle).output();
        accumulator.clear = accumulator.take(&beside, beside.constant(1i32))[0].node;
        accumulator
    }

    /// Returns the name of the accumulator op for `action`. For a sparse accumulator, only ops that take or apply
    /// gradients have the prefix `Sparse`.
    fn op_name(&self, action: &str, of_gradients: bool) -> String {
        match (self.is_sparse, of_gradients) {
            (true, true) => format!("SparseAccumulator{action}"),
            (true, false) => format!("Accumulator{action}"),
            (false, _) => format!("ResourceAccumulator{action}"),
        }
    }

    /// Adds a node that waits for `required` gradients, empties the accumulator, and returns their mean.
    fn take(&self, scope: &Scope, required: Output) -> Vec<Output> {
        let op = self.op_name("TakeGradient", true);
        scope.op(&op).input(self.handle).input(required).attr("dtype", self.dtype).outputs()
    }
}

impl Accumulators {
    /// Adds an accumulator for each variable.
    pub(super) fn new(
        scope: &Scope,
        gradients: &[(Variable, Gradient)],
        global_step: Output,
    ) -> Accumulators {
        let all: Vec<Accumulator> = gradients
            .iter()
            .map(|(variable, gradient)| {
                Accumulator::new(scope, variable, matches!(gradient, Gradient::Sparse { .. }))
            })
            .collect();
        let set = |a: &Accumulator| {
            let op = a.op_name("SetGlobalStep", false);
            scope.colocate_with(a.variable).op(&op).input(a.handle).input(global_step).node()
        };
        let steps: Vec<NodeId> = all.iter().map(set).collect();
        Accumulators {
            required: scope.placeholder("sync_rep_required", DType::Int32, PartialShape::scalar()),
            tokens: scope.placeholder("sync_rep_tokens", DType::Int32, PartialShape::from([1usize])),
            set_steps: scope.group(&steps),
            all,
        }
    }

    /// Adds the nodes that push a worker's gradients, computed at `local_step`.
    pub(super) fn push(
        &self,
        scope: &Scope,
        local_step: Output,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<NodeId> {
        let push = |((variable, gradient), accumulator): (&(Variable, Gradient), &Accumulator)| {
            let op = accumulator.op_name("ApplyGradient", true);
            let beside = scope.colocate_with(accumulator.variable);
            let call = beside.op(&op).input(accumulator.handle).input(local_step);
            match *gradient {
                Gradient::Dense(gradient) => call.input(gradient).node(),
                Gradient::Sparse { indices, values } => {
                    let dims: Vec<i64> = variable.shape.iter().map(|&d| d as i64).collect();
                    let shape = beside.constant_vector(&dims);
                    call.input(indices).input(values).input(shape).attr("has_known_shape", true).node()
                }
            }
        };
        gradients.iter().zip(&self.all).map(push).collect()
    }

    /// Adds the nodes that take the mean gradient out of each accumulator.
    pub(super) fn means(
        &self,
        scope: &Scope,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<(Variable, Gradient)> {
        let mean = |((variable, _), accumulator): (&(Variable, Gradient), &Accumulator)| {
            let beside = scope.colocate_with(accumulator.variable);
            let taken = accumulator.take(&beside, self.required);
            let gradient = match taken[..] {
                [indices, values, _] => Gradient::Sparse { indices, values },
                _ => Gradient::Dense(taken.first().copied().unwrap_or(accumulator.handle)),
            };
            (variable.clone(), gradient)
        };
        gradients.iter().zip(&self.all).map(mean).collect()
    }

    /// Returns the number of gradients in the accumulator that has the fewest.
    pub(super) fn min_count(&self, scope: &Scope) -> Output {
        let counts: Vec<Output> = self.all.iter().map(|a| a.count).collect();
        scope.reduce_min(scope.pack(&counts, 0), &[0], false)
    }

    /// Returns for each accumulator its number of gradients and the node that removes them.
    pub(super) fn counts_and_clears(&self) -> Vec<(Output, NodeId)> {
        self.all.iter().map(|a| (a.count, a.clear)).collect()
    }
}
