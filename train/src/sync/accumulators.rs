//! Gradients in TensorFlow's accumulators, under the names that its `SyncReplicasOptimizer` gives them.

use crate::gradient::Gradient;
use crate::variables::Variable;
use graph::{DType, NodeId, Output, PartialShape, Scope};

/// An accumulator a variable, beside it.
#[derive(Clone, Debug)]
pub(crate) struct Accumulators {
    all: Vec<Accumulator>,
    /// How many gradients an update needs of each, an `int32` scalar to be fed.
    pub(super) required: Output,
    /// How many tokens follow, an `int32` vector of one to be fed.
    pub(super) tokens: Output,
    /// Gradients of steps before the global one are stale from here on.
    pub(super) set_steps: NodeId,
}

#[derive(Clone, Debug)]
struct Accumulator {
    /// Of the variable, beside which it is.
    variable: NodeId,
    handle: Output,
    is_sparse: bool,
    dtype: DType,
    /// How many gradients it has.
    count: Output,
    /// Takes what it has.
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
        let mut made = Accumulator { variable, handle, is_sparse, dtype, count: handle, clear: handle.node };
        made.count = beside.op(&made.named("NumAccumulated", false)).input(handle).output();
        made.clear = made.take(&beside, beside.constant(1i32))[0].node;
        made
    }

    /// The op that does this: sparse accumulators have ops of their own for gradients alone.
    fn named(&self, what: &str, of_gradients: bool) -> String {
        match (self.is_sparse, of_gradients) {
            (true, true) => format!("SparseAccumulator{what}"),
            (true, false) => format!("Accumulator{what}"),
            (false, _) => format!("ResourceAccumulator{what}"),
        }
    }

    fn take(&self, scope: &Scope, required: Output) -> Vec<Output> {
        let op = self.named("TakeGradient", true);
        scope.op(&op).input(self.handle).input(required).attr("dtype", self.dtype).outputs()
    }
}

impl Accumulators {
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
            let op = a.named("SetGlobalStep", false);
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

    /// A worker's gradients, computed at `local_step`.
    pub(super) fn push(
        &self,
        scope: &Scope,
        local_step: Output,
        gradients: &[(Variable, Gradient)],
    ) -> Vec<NodeId> {
        let push = |((variable, gradient), accumulator): (&(Variable, Gradient), &Accumulator)| {
            let op = accumulator.named("ApplyGradient", true);
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

    /// The mean of what each accumulator has.
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

    /// How many gradients every accumulator has at least.
    pub(super) fn least(&self, scope: &Scope) -> Output {
        let counts: Vec<Output> = self.all.iter().map(|a| a.count).collect();
        scope.reduce_min(scope.pack(&counts, 0), &[0], false)
    }

    /// How many gradients each has, and what takes them away.
    pub(super) fn contents(&self) -> Vec<(Output, NodeId)> {
        self.all.iter().map(|a| (a.count, a.clear)).collect()
    }
}
