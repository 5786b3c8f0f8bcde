//! Strategies: the same model function on one device, on towers in one graph, or beside parameter servers.

use crate::initializer::Initializer;
use crate::optimizer::Optimizer;
use crate::variables::{Variable, Variables};
use graph::{DType, DeviceSpec, Error, NodeId, Output, Result, Scope};
use placer::{
    GreedyLoadBalancing, PsStrategy, ReplicaDeviceSetter, RoundRobin, byte_size_load, replica_device_setter,
};

/// How a model is spread over devices and tasks. Everything else about a training program stays the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// One replica on the default device.
    Local,
    /// In-graph replication: a copy of the model a device, each on its share of the batch; variables and
    /// averaged gradients on one device.
    Towers { devices: Vec<String>, variables: String },
    /// Between-graph replication, asynchronous: each worker runs this graph by itself, and shares the variables,
    /// which lie on the parameter servers, by their names.
    ParameterServer { ps_tasks: u32, worker: u32, placement: VariablePlacement },
}

/// Which parameter server a variable goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VariablePlacement {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest bytes so far.
    GreedyByBytes,
}

impl VariablePlacement {
    fn strategy(self, ps_tasks: u32) -> Box<dyn PsStrategy> {
        match self {
            VariablePlacement::RoundRobin => Box::new(RoundRobin::new(ps_tasks)),
            VariablePlacement::GreedyByBytes => Box::new(GreedyLoadBalancing::new(ps_tasks, byte_size_load)),
        }
    }
}

/// A model ready to be trained.
#[derive(Clone, Debug)]
pub struct Training {
    pub variables: Variables,
    /// Gives every variable its first value; run by one replica.
    pub initialize: NodeId,
    /// One training step.
    pub train: NodeId,
    /// The loss of the step, averaged over towers.
    pub loss: Output,
    /// Steps done by all replicas together, `int64`.
    pub global_step: Output,
}

impl Strategy {
    /// The scope that places a replica's nodes, and that which places variables.
    pub fn scopes(&self, scope: &Scope) -> (Scope, Scope) {
        match self {
            Strategy::Local => (scope.clone(), scope.clone()),
            Strategy::Towers { variables, .. } => (scope.clone(), scope.device(variables)),
            Strategy::ParameterServer { ps_tasks, worker, placement } => {
                let worker_device =
                    DeviceSpec { job: Some("worker".into()), task: Some(*worker), ..DeviceSpec::default() };
                let setter = replica_device_setter(ReplicaDeviceSetter {
                    ps_tasks: *ps_tasks,
                    worker_device,
                    strategy: Some(placement.strategy(*ps_tasks)),
                    ..ReplicaDeviceSetter::default()
                });
                let placed = setter.map_or_else(|| scope.clone(), |setter| scope.device_fn(setter));
                (placed.clone(), placed)
            }
        }
    }

    /// Builds a training step. `loss` is the model: from the batch's inputs (this replica's share of them) to a
    /// scalar loss, over variables that it asks for by name.
    ///
    /// # Errors
    /// The first error of any node, a variable without gradient, or a strategy without devices.
    pub fn minimize(
        &self,
        scope: &Scope,
        variables: &Variables,
        optimizer: &Optimizer,
        inputs: &[Output],
        loss: impl Fn(&Scope, &Variables, &[Output]) -> Output,
    ) -> Result<Training> {
        let towers = self.towers(scope, inputs)?;
        let mut losses = Vec::with_capacity(towers.len());
        let mut of_towers = Vec::with_capacity(towers.len());
        for (tower, share) in &towers {
            let loss = loss(tower, variables, share);
            let trained = variables.trainable();
            let values: Vec<Output> = trained.iter().map(|v| v.value).collect();
            of_towers.push(tower.gradients(&[loss], &values, &[])?);
            losses.push(loss);
        }
        let gradients = average(scope, &variables.trainable(), &of_towers)?;
        let updated = optimizer.apply(scope, variables, &gradients);
        let step =
            variables.get_untrained("global_step", DType::Int64, &[], &Initializer::Value(0i64.into()));
        let counted = scope.colocate_with(step.handle.node).control(&[updated]);
        let count = counted.op("AssignAddVariableOp").input(step.handle).input(counted.constant(1i64));
        let train = count.attr("dtype", DType::Int64).node();
        let training = Training {
            initialize: variables.initializer(),
            train: scope.group(&[updated, train]),
            loss: mean_of(scope, &losses),
            global_step: step.value,
            variables: variables.clone(),
        };
        scope.finish().map(|_| training)
    }

    /// The scope and the inputs of each replica in this graph.
    fn towers(&self, scope: &Scope, inputs: &[Output]) -> Result<Vec<(Scope, Vec<Output>)>> {
        let Strategy::Towers { devices, .. } = self else {
            return Ok(vec![(scope.clone(), inputs.to_vec())]);
        };
        if devices.is_empty() {
            return Err(Error::invalid("Strategy::Towers has no devices"));
        }
        let count = devices.len();
        let shares: Vec<Vec<Output>> = inputs
            .iter()
            .map(|input| {
                let axis = scope.constant(0i32);
                scope.op("Split").input(axis).input(*input).attr("num_split", count as i64).outputs()
            })
            .collect();
        let tower = |i: usize| {
            let share = shares.iter().filter_map(|s| s.get(i).copied()).collect();
            (scope.name_scope(&format!("tower_{i}")).device(&devices[i]), share)
        };
        Ok((0..count).map(tower).collect())
    }
}

/// The mean over towers of each variable's gradient, computed beside the variable.
fn average(
    scope: &Scope,
    variables: &[Variable],
    towers: &[Vec<Option<Output>>],
) -> Result<Vec<(Variable, Output)>> {
    let mut averaged = Vec::with_capacity(variables.len());
    for (i, variable) in variables.iter().enumerate() {
        let of_towers: Option<Vec<Output>> = towers.iter().map(|t| t.get(i).copied().flatten()).collect();
        let Some(of_towers) = of_towers else {
            return Err(Error::invalid(format!("the loss does not depend on variable '{}'", variable.name)));
        };
        averaged.push((variable.clone(), mean_of(&scope.colocate_with(variable.handle.node), &of_towers)));
    }
    Ok(averaged)
}

/// The mean of tensors of one shape; the order of summation is theirs.
fn mean_of(scope: &Scope, values: &[Output]) -> Output {
    match values {
        [one] => *one,
        many => {
            let sum = scope.op("AddN").input(many).output();
            let share = crate::initializer::number(scope, scope.dtype(sum), 1.0 / many.len() as f64);
            scope.mul(sum, share)
        }
    }
}
