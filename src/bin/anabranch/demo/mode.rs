//! How a model is replicated: what differs between the demo's runs, and nothing else does.

use clap::ValueEnum;
use client::SessionOptions;
use graph::Scope;
use proto::pb;
use train::{Aggregation, Averaging, Strategy, SyncMode, VariablePlacement};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Mode {
    /// One device of this process
    Local,
    /// Two towers in one graph, on two devices of this process
    InGraph,
    /// Two parameter servers and two workers, started as processes, each worker at its own pace
    BetweenGraph,
    /// The same, the workers in step: one update with the mean of their gradients
    Synchronous,
    /// In step by TensorFlow's accumulators and token queue
    Accumulators,
    /// In step with three workers, of which each step waits for the first two
    Backup,
    /// At their own pace, but no worker more than three steps ahead of the slowest
    BoundedStaleness,
}

/// Where a model is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compute {
    /// Wherever placement puts it.
    Anywhere,
    /// On the first GPU of the client's process, or its worker's.
    OnGpu,
}

impl Compute {
    /// The scope of a model's nodes, in that of the replica's.
    pub(super) fn scope(self, replica: &Scope) -> Scope {
        match self {
            Compute::Anywhere => replica.clone(),
            Compute::OnGpu => replica.device("/device:GPU:0"),
        }
    }

    /// Nodes of a model without a kernel for a GPU are computed beside it.
    pub(super) fn session(self) -> SessionOptions {
        let config = pb::ConfigProto { allow_soft_placement: self == Compute::OnGpu, ..Default::default() };
        SessionOptions { config, ..SessionOptions::default() }
    }
}

/// Towers, or workers that a step or the job needs.
pub(super) const REPLICAS: u32 = 2;

/// Parameter servers, where there are any.
pub(super) const SERVERS: u32 = 2;

/// Workers more than a step waits for.
const BACKUP: u32 = 1;

/// Steps that a worker may be ahead.
const AHEAD: u32 = 3;

impl Mode {
    /// What a client of this number trains by.
    pub(super) fn strategy(self, worker: u32) -> Strategy {
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
        };
        let placement = VariablePlacement::RoundRobin;
        Strategy::ParameterServer { ps_tasks: SERVERS, worker, placement, sync }
    }

    /// Whether all is in this process, on so many CPU devices.
    pub(super) fn devices_of_one_process(self) -> Option<u32> {
        match self {
            Mode::Local => Some(1),
            // One for the variables.
            Mode::InGraph => Some(REPLICAS + 1),
            _ => None,
        }
    }

    /// Clients, each with a graph of its own.
    pub(super) fn clients(self) -> u32 {
        match self {
            Mode::Local | Mode::InGraph => 1,
            Mode::Backup => REPLICAS + BACKUP,
            _ => REPLICAS,
        }
    }

    /// Examples that a client brings to a step of so many.
    pub(super) fn share(self, batch: usize) -> usize {
        match self {
            Mode::Synchronous | Mode::Accumulators | Mode::Backup => batch / REPLICAS as usize,
            _ => batch,
        }
    }
}

fn in_step(backup: u32, aggregation: Aggregation) -> SyncMode {
    SyncMode::Sync { replicas_to_aggregate: REPLICAS, backup, aggregation }
}
