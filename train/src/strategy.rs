//! Strategies: the same model function on one device, on towers in one graph, or beside parameter servers.

use crate::clip::Clip;
use crate::moving_average::MovingAverage;
use crate::optimizer::Optimizer;
use crate::placement::VariablePlacement;
use crate::training::{self, Training};
use crate::variables::Variables;
use graph::{DeviceSpec, Error, Output, Result, Scope};
use placer::{ReplicaDeviceSetter, replica_device_setter};

/// How a model is spread over devices and tasks. Everything else about a training program stays the same.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// One replica on the default device.
    Local,
    /// In-graph replication: a copy of the model a device, each on its share of the batch; variables and
    /// averaged gradients on one device.
    Towers { devices: Vec<String>, variables: String, averaging: Averaging },
    /// Between-graph replication: each worker runs this graph by itself, and shares the variables, which lie on the
    /// parameter servers, by their names.
    ParameterServer { ps_tasks: u32, worker: u32, placement: VariablePlacement, sync: SyncMode },
}

/// Where the gradients of towers become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Averaging {
    /// On the variables' device, to which each tower's gradients go, in the order of the towers.
    #[default]
    BesideVariables,
    /// Between the towers, by NVIDIA's NCCL, and then to the variables' device once: the towers are GPUs of one task,
    /// which has the library. Gradients of rows, and of types that `NcclAllReduce` does not take, go as otherwise.
    Nccl,
}

/// How far the workers of a [`Strategy::ParameterServer`] wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// Not at all: each worker's gradients are applied as they come.
    #[default]
    Async,
    /// A step is one update with the mean gradient of `replicas_to_aggregate` workers, done by the chief; there are
    /// `replicas_to_aggregate + backup` workers. Gradients of slower workers are dropped, and counted. A worker that
    /// has finished says so, and is waited for no more.
    Sync { replicas_to_aggregate: u32, backup: u32, aggregation: Aggregation },
    /// As [`SyncMode::Async`], but no worker starts a step while it is more than `steps` steps ahead of the slowest
    /// one of `workers`.
    BoundedStaleness { steps: u32, workers: u32 },
}

/// How the gradients of a synchronous step are put together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// In the order of the workers, each of whose gradients waits in a place of its own beside the variable: the same
    /// bits from run to run, and a gradient that is pushed twice counts once. Takes a gradient's memory a worker.
    #[default]
    InOrder,
    /// In the order of arrival, in TensorFlow's accumulators and token queue, under the names of its
    /// `SyncReplicasOptimizer`: replicas of both kinds train one job. Takes one gradient's memory.
    Accumulators,
}

/// What is done with gradients and variables besides the optimizer's step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateOptions {
    /// Each replica clips its own gradients.
    pub clip: Option<Clip>,
    /// Averages of all trained variables.
    pub moving_average: Option<MovingAverage>,
}

impl Strategy {
    /// The scope that places a replica's nodes, and that which places variables.
    pub fn scopes(&self, scope: &Scope) -> (Scope, Scope) {
        match self {
            Strategy::Local => (scope.clone(), scope.clone()),
            Strategy::Towers { variables, .. } => (scope.clone(), scope.device(variables)),
            Strategy::ParameterServer { ps_tasks, worker, placement, .. } => {
                let worker_device =
                    DeviceSpec { job: Some("worker".into()), task: Some(*worker), ..DeviceSpec::default() };
                // A GPU that a parameter server happens to have is not for variables: workers ask for them all the time.
                let ps_device = DeviceSpec {
                    job: Some("ps".into()),
                    device_type: Some("CPU".into()),
                    id: Some(0),
                    ..DeviceSpec::default()
                };
                let setter = replica_device_setter(ReplicaDeviceSetter {
                    ps_tasks: *ps_tasks,
                    ps_device,
                    worker_device,
                    strategy: Some(placement.strategy(*ps_tasks)),
                    ..ReplicaDeviceSetter::default()
                });
                let placed = setter.map_or_else(|| scope.clone(), |setter| scope.device_fn(setter));
                (placed.clone(), placed)
            }
        }
    }

    /// Which worker this replica is, and how it waits for others.
    pub(crate) fn replica(&self) -> (u32, SyncMode) {
        match self {
            Strategy::Local | Strategy::Towers { .. } => (0, SyncMode::Async),
            Strategy::ParameterServer { worker, sync, .. } => (*worker, *sync),
        }
    }

    /// Builds a training step. `loss` is the model: from the batch's inputs (this replica's share of them) to a
    /// scalar loss, over variables that it asks for by name.
    ///
    /// # Errors
    /// The first error of any node, a variable without gradient, or a strategy without devices or replicas.
    pub fn minimize(
        &self,
        scope: &Scope,
        variables: &Variables,
        optimizer: &Optimizer,
        inputs: &[Output],
        loss: impl Fn(&Scope, &Variables, &[Output]) -> Output,
    ) -> Result<Training> {
        self.minimize_with(scope, variables, optimizer, UpdateOptions::default(), inputs, loss)
    }

    /// As [`Strategy::minimize`], with clipped gradients or averaged variables.
    pub fn minimize_with(
        &self,
        scope: &Scope,
        variables: &Variables,
        optimizer: &Optimizer,
        options: UpdateOptions,
        inputs: &[Output],
        loss: impl Fn(&Scope, &Variables, &[Output]) -> Output,
    ) -> Result<Training> {
        let towers = self.towers(scope, inputs)?;
        training::build(self, scope, variables, &training::Update { optimizer, options }, &towers, loss)
    }

    pub(crate) fn averaging(&self) -> Averaging {
        match self {
            Strategy::Towers { averaging, .. } => *averaging,
            Strategy::Local | Strategy::ParameterServer { .. } => Averaging::default(),
        }
    }

    /// The scope and the inputs of each replica in this graph.
    fn towers(&self, scope: &Scope, inputs: &[Output]) -> Result<Vec<(Scope, Vec<Output>)>> {
        let Strategy::Towers { devices, averaging, .. } = self else {
            return Ok(vec![(scope.clone(), inputs.to_vec())]);
        };
        if devices.is_empty() {
            return Err(Error::invalid("Strategy::Towers has no devices"));
        }
        if *averaging == Averaging::Nccl {
            check_collective(devices)?;
        }
        let count = devices.len();
        let shares: Vec<Vec<Output>> = inputs.iter().map(|input| scope.split(*input, count, 0)).collect();
        let tower = |i: usize| {
            let share = shares.iter().filter_map(|s| s.get(i).copied()).collect();
            (scope.name_scope(&format!("tower_{i}")).device(&devices[i]), share)
        };
        Ok((0..count).map(tower).collect())
    }
}

/// That towers may meet by NCCL, as far as their names tell.
fn check_collective(devices: &[String]) -> Result<()> {
    let specs: Vec<DeviceSpec> =
        devices.iter().map(|device| DeviceSpec::parse(device)).collect::<Result<_>>()?;
    for (spec, device) in specs.iter().zip(devices) {
        if spec.device_type.as_deref() != Some("GPU") || spec.id.is_none() {
            return Err(Error::invalid(format!(
                "NCCL averages between GPUs, of which '{device}' names none"
            )));
        }
    }
    for (i, (spec, device)) in specs.iter().zip(devices).enumerate() {
        let of_task = |spec: &DeviceSpec| (spec.job.clone(), spec.replica, spec.task);
        if of_task(spec) != of_task(&specs[0]) {
            return Err(Error::invalid(format!(
                "NCCL averages between GPUs of one task, not '{}' and '{device}'",
                devices[0]
            )));
        }
        if specs[..i].contains(spec) {
            return Err(Error::invalid(format!(
                "NCCL averages between different GPUs: '{device}' is there twice"
            )));
        }
    }
    Ok(())
}
