//! The demo's replication modes, and the settings that depend on the mode.

use clap::ValueEnum;
use client::SessionOptions;
use graph::Scope;
use proto::pb;
use train::{Aggregation, Average, Averaging, Strategy, SyncMode, Tables, Uneven, VariablePlacement, Wire};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// One device of this process
    Local,
    /// Two towers in one graph, on two devices of this process
    InGraph,
    /// Two parameter servers and two workers, started as processes, with asynchronous workers
    BetweenGraph,
    /// Two parameter servers and two synchronous workers: one update for each step, with the mean of both gradients
    Synchronous,
    /// Like synchronous, with TensorFlow's accumulators and token queue
    Accumulators,
    /// Three synchronous workers, where each step takes the first two gradients
    Backup,
    /// Asynchronous workers, none of them more than three steps ahead of the slowest
    BoundedStaleness,
    /// Two workers, started as processes, that hold all variables and combine their gradients in each step; no parameter
    /// servers. Under mpirun, torchrun or srun, each process that they start is one worker
    AllReduce,
    /// Like all-reduce, with the model's tables on two parameter servers
    Hybrid,
}

/// The rule that decides on which device a model is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compute {
    /// The device that the placer chooses.
    Anywhere,
    /// The first GPU of the client's process, or of its worker.
    OnGpu,
}

impl Compute {
    /// Returns the scope in which the model's nodes are built: `replica`, or `replica` with the first GPU as the
    /// device.
    pub(super) fn scope(self, replica: &Scope) -> Scope {
        match self {
            Compute::Anywhere => replica.clone(),
            Compute::OnGpu => replica.device("/device:GPU:0"),
        }
    }

    /// Returns the session options. If a GPU computes the model, nodes without a GPU kernel are placed on the CPU.
    pub(super) fn session(self) -> SessionOptions {
        let config = pb::ConfigProto { allow_soft_placement: self == Compute::OnGpu, ..Default::default() };
        SessionOptions { config, ..SessionOptions::default() }
    }
}

/// The place of a client among those of its job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The index of the client, and of its worker.
    pub(super) worker: u32,
    pub(super) workers: u32,
}

/// Number of towers, or of workers whose gradients a step needs.
pub(super) const REPLICAS: u32 = 2;

/// Number of parameter servers in the modes that have some.
const SERVERS: u32 = 2;

/// Number of backup workers, which a step does not wait for.
const BACKUP: u32 = 1;

/// Number of steps that a worker may be ahead of the slowest.
const AHEAD: u32 = 3;

impl Mode {
    /// Returns the training strategy of a client.
    pub(super) fn strategy(self, place: Place) -> Strategy {
        let worker = place.worker;
        let placement = VariablePlacement::RoundRobin;
        let sync = match self {
            Mode::Local => return Strategy::Local,
            Mode::InGraph => {
                let devices = (1..=REPLICAS).map(|i| format!("/device:CPU:{i}")).collect();
                return Strategy::Towers {
                    devices,
                    variables: "/device:CPU:0".to_owned(),
                    averaging: Averaging::default(),
                };
            }
            Mode::BetweenGraph => SyncMode::Async,
            Mode::Synchronous => in_step(0, Aggregation::InOrder),
            Mode::Accumulators => in_step(0, Aggregation::Accumulators),
            Mode::Backup => in_step(BACKUP, Aggregation::InOrder),
            Mode::BoundedStaleness => SyncMode::BoundedStaleness { steps: AHEAD, workers: REPLICAS },
            Mode::AllReduce => return combining(place, Tables::Replicated),
            Mode::Hybrid => {
                return combining(place, Tables::OnParameterServers { ps_tasks: SERVERS, placement });
            }
        };
        Strategy::ParameterServer { ps_tasks: SERVERS, worker, placement, sync }
    }

    /// Returns the number of CPU devices of this process if the mode runs within it, or `None` for modes with server
    /// processes.
    pub(super) fn devices_of_one_process(self) -> Option<u32> {
        match self {
            Mode::Local => Some(1),
            // One device for each tower, and one for the variables.
            Mode::InGraph => Some(REPLICAS + 1),
            _ => None,
        }
    }

    /// Returns the number of parameter servers.
    pub(super) fn servers(self) -> u32 {
        match self {
            Mode::Local | Mode::InGraph | Mode::AllReduce => 0,
            _ => SERVERS,
        }
    }

    /// Returns the number of clients, each of which has its own graph, unless a launcher decides it.
    pub(super) fn clients(self) -> u32 {
        match self {
            Mode::Local | Mode::InGraph => 1,
            Mode::Backup => REPLICAS + BACKUP,
            _ => REPLICAS,
        }
    }

    /// Returns the number of examples that each of the `workers` clients contributes to a step of `batch` examples.
    pub(super) fn share(self, batch: usize, workers: u32) -> usize {
        let share = match self {
            Mode::Synchronous | Mode::Accumulators | Mode::Backup => batch / REPLICAS as usize,
            Mode::AllReduce | Mode::Hybrid => batch / workers as usize,
            _ => batch,
        };
        share.max(1)
    }

    /// Returns the name of the mode on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// Returns the strategy of a worker that combines its gradients with those of the others.
fn combining(Place { worker, workers }: Place, tables: Tables) -> Strategy {
    Strategy::AllReduce {
        worker,
        workers,
        least: workers,
        average: Average::Mean,
        wire: Wire::F32,
        uneven: Uneven::Fail,
        tables,
    }
}

fn in_step(backup: u32, aggregation: Aggregation) -> SyncMode {
    SyncMode::Sync { replicas_to_aggregate: REPLICAS, backup, aggregation }
}
