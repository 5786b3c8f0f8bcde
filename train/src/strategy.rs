//! Strategies: the distribution of one model function over one device, over towers in one graph, or over workers with
//! or without parameter servers.

use crate::all_reduce::{AllReduceJob, Average, OptionalBatch, Tables, Uneven, Wire};
use crate::clip::Clip;
use crate::moving_average::MovingAverage;
use crate::optimizer::Optimizer;
use crate::placement::{VariablePlacement, worker_device};
use crate::training::{self, Towers, Training};
use crate::variables::Variables;
use graph::{DeviceSpec, Error, Output, Result, Scope};

/// The distribution of a model over devices and tasks. All other parts of a training program are the same for
/// each strategy.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// One replica on the default device.
    Local,
    /// In-graph replication: one copy of the model on each of `devices`, each with its share of the batch.
    /// The variables and the averaged gradients are on the device `variables`.
    Towers { devices: Vec<String>, variables: String, averaging: Averaging },
    /// Between-graph replication: each worker runs this graph in its own session. The workers share the
    /// variables, which are on the parameter servers, by name.
    ParameterServer { ps_tasks: u32, worker: u32, placement: VariablePlacement, sync: SyncMode },
    /// Between-graph replication without parameter servers, or with some for `tables` only: each worker runs this graph
    /// in its own session, holds all other variables on its task `/job:worker/task:<worker>`, and updates them with the
    /// combined gradients of all workers, which have the same bits everywhere. The loss of a step is that of the
    /// worker's own share. The job has at most `workers` workers. It trains while at least `least` workers are present;
    /// if `least` equals `workers`, the job waits for a lost worker.
    AllReduce {
        worker: u32,
        workers: u32,
        least: u32,
        average: Average,
        wire: Wire,
        uneven: Uneven,
        tables: Tables,
    },
}

/// The method that averages the gradients of towers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Averaging {
    /// Summation on the variables' device, which receives the gradients of all towers, in the order of the
    /// towers.
    #[default]
    OnVariableDevice,
    /// Summation between the towers by NVIDIA's NCCL; the sum is then sent to the variables' device once. The
    /// towers must be GPUs of one task that has the library. Sparse gradients, and those of types that
    /// `NcclAllReduce` does not support, are summed on the variables' device.
    Nccl,
}

/// The synchronisation between the workers of a [`Strategy::ParameterServer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncMode {
    /// None: each worker's gradients are applied when they arrive.
    #[default]
    Async,
    /// One update per step, made by the chief with the mean gradient of `replicas_to_aggregate` of the
    /// `replicas_to_aggregate + backup` workers. Gradients of slower workers are dropped and counted. Updates do not
    /// wait for finished workers.
    Sync { replicas_to_aggregate: u32, backup: u32, aggregation: Aggregation },
    /// Like [`SyncMode::Async`], but no worker starts a step while it is more than `steps` steps ahead of the
    /// slowest of `workers` workers.
    BoundedStaleness { steps: u32, workers: u32 },
}

/// The method that averages the gradients of a synchronous step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregation {
    /// Summation in the order of the workers, whose gradients are in separate buffers beside the variable. Results are
    /// the same bits from run to run, and a gradient that is pushed twice counts once. The buffers take the memory of
    /// one gradient per worker.
    #[default]
    InOrder,
    /// Summation in the order of arrival, in TensorFlow's accumulators and with its token queue, named like those of
    /// its `SyncReplicasOptimizer`, so that TensorFlow's replicas can train the same job. The accumulators take the
    /// memory of one gradient.
    Accumulators,
}

/// Options of an update beyond the optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateOptions {
    /// The clipping of gradients, which each replica does separately.
    pub clip: Option<Clip>,
    /// The moving averages of all trained variables.
    pub moving_average: Option<MovingAverage>,
}

impl Strategy {
    /// Returns two scopes: one in which a replica adds its nodes, and one in which it creates variables.
    pub fn scopes(&self, scope: &Scope) -> (Scope, Scope) {
        match self {
            Strategy::Local => (scope.clone(), scope.clone()),
            Strategy::Towers { variables, .. } => (scope.clone(), scope.device(variables)),
            Strategy::AllReduce { worker, tables, .. } => {
                let on_worker = scope.device(&worker_device(*worker).to_string());
                let for_variables = tables.scope(scope, *worker).unwrap_or_else(|| on_worker.clone());
                (on_worker, for_variables)
            }
            Strategy::ParameterServer { ps_tasks, worker, placement, .. } => {
                let setter = placement.device_setter(*ps_tasks, *worker);
                let placed = setter.map_or_else(|| scope.clone(), |setter| scope.device_fn(setter));
                (placed.clone(), placed)
            }
        }
    }

    /// Returns the index of this replica's worker, and the synchronisation between the workers.
    pub(crate) fn worker_and_sync(&self) -> (u32, SyncMode) {
        match self {
            Strategy::Local | Strategy::Towers { .. } => (0, SyncMode::Async),
            Strategy::ParameterServer { worker, sync, .. } => (*worker, *sync),
            Strategy::AllReduce { worker, .. } => (*worker, SyncMode::Async),
        }
    }

    /// Returns this worker's place in an all-reduce job; `None` for other strategies.
    pub(crate) fn all_reduce(&self) -> Option<AllReduceJob> {
        match *self {
            Strategy::AllReduce { worker, workers, least, average, wire, uneven, ref tables } => {
                let ps_tasks = tables.ps_tasks();
                Some(AllReduceJob { worker, workers, least, average, wire, uneven, ps_tasks })
            }
            _ => None,
        }
    }

    /// Builds a training step. `loss` is the model: it computes a scalar loss from the inputs of the batch
    /// (this replica's share of them), with variables that it gets by name.
    ///
    /// # Errors
    /// The first error of any node, a variable without a gradient, a strategy without devices or replicas, a worker
    /// index that the strategy does not have, or a batch that [`Uneven::Join`] does not support.
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

    /// Builds a training step like [`Strategy::minimize`], with clipped gradients or averaged variables.
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
        training::build(self, scope, variables, &training::UpdateRule { optimizer, options }, &towers, loss)
    }

    /// Returns the method that averages the gradients of towers.
    pub(crate) fn averaging(&self) -> Averaging {
        match self {
            Strategy::Towers { averaging, .. } => *averaging,
            _ => Averaging::default(),
        }
    }

    /// Returns the scope of each tower and its share of the inputs; one tower for strategies without towers.
    fn towers(&self, scope: &Scope, inputs: &[Output]) -> Result<Towers> {
        if let Some(job) = self.all_reduce() {
            job.check()?;
            if job.joins() {
                let OptionalBatch { has_batch, components } = OptionalBatch::new(scope, inputs)?;
                return Ok(Towers { copies: vec![(scope.clone(), components)], has_batch: Some(has_batch) });
            }
        }
        let Strategy::Towers { devices, averaging, .. } = self else {
            return Ok(Towers { copies: vec![(scope.clone(), inputs.to_vec())], has_batch: None });
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
        Ok(Towers { copies: (0..count).map(tower).collect(), has_batch: None })
    }
}

/// Checks that NCCL can average between these devices, as far as their names show it: they must be different GPUs of
/// one task.
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
        let task_of = |spec: &DeviceSpec| (spec.job.clone(), spec.replica, spec.task);
        if task_of(spec) != task_of(&specs[0]) {
            return Err(Error::invalid(format!(
                "NCCL averages between GPUs of one task, not '{}' and '{device}'",
                devices[0]
            )));
        }
        if specs[..i].contains(spec) {
            return Err(Error::invalid(format!(
                "NCCL averages between different GPUs: '{device}' is listed twice"
            )));
        }
    }
    Ok(())
}
