//! The placement of variables on parameter servers.

use graph::{DeviceSpec, Node};
use placer::{
    GreedyLoadBalancing, PsStrategy, ReplicaDeviceSetter, RoundRobin, byte_size_load, replica_device_setter,
};
use std::fmt;
use std::sync::Arc;

/// The rule that assigns each variable to a parameter server. All replicas of a job must use the same rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VariablePlacement {
    /// Round robin: each variable goes to the next parameter server.
    #[default]
    RoundRobin,
    /// Each variable goes to the parameter server with the fewest bytes of variables so far.
    GreedyByBytes,
    /// Each variable goes to the parameter server with the least total cost so far.
    GreedyByCost(VariableCost),
}

/// The load that a variable adds to its parameter server: a function of the variable's handle node, which has its name,
/// `dtype` and `shape`. Two costs are equal if one is a clone of the other.
#[derive(Clone)]
pub struct VariableCost(Arc<dyn Fn(&Node) -> f64 + Send + Sync>);

impl VariableCost {
    /// Returns the cost given by a function, whose values must be finite and at least 0, in any unit.
    pub fn new(cost: impl Fn(&Node) -> f64 + Send + Sync + 'static) -> VariableCost {
        VariableCost(Arc::new(cost))
    }
}

impl PartialEq for VariableCost {
    fn eq(&self, other: &VariableCost) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for VariableCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VariableCost").finish_non_exhaustive()
    }
}

impl VariablePlacement {
    /// Returns the function that gives variables the device of one of `ps_tasks` parameter servers, and other nodes that
    /// of a worker; `None` if there are no parameter servers.
    pub(crate) fn device_setter(
        &self,
        ps_tasks: u32,
        worker: u32,
    ) -> Option<impl Fn(&Node) -> DeviceSpec + use<>> {
        // Variables are never on a parameter server's GPU, because workers read them over the network in every step.
        let ps_device = DeviceSpec {
            job: Some("ps".into()),
            device_type: Some("CPU".into()),
            id: Some(0),
            ..DeviceSpec::default()
        };
        replica_device_setter(ReplicaDeviceSetter {
            ps_tasks,
            ps_device,
            worker_device: worker_device(worker),
            strategy: Some(self.strategy(ps_tasks)),
            ..ReplicaDeviceSetter::default()
        })
    }

    /// Returns the placer's strategy that implements the rule for `ps_tasks` parameter servers.
    fn strategy(&self, ps_tasks: u32) -> Box<dyn PsStrategy> {
        match self {
            VariablePlacement::RoundRobin => Box::new(RoundRobin::new(ps_tasks)),
            VariablePlacement::GreedyByBytes => Box::new(GreedyLoadBalancing::new(ps_tasks, byte_size_load)),
            VariablePlacement::GreedyByCost(VariableCost(cost)) => {
                let cost = cost.clone();
                Box::new(GreedyLoadBalancing::new(ps_tasks, move |node| cost(node)))
            }
        }
    }
}

/// Returns the device of a worker's task.
pub(crate) fn worker_device(worker: u32) -> DeviceSpec {
    DeviceSpec { job: Some("worker".into()), task: Some(worker), ..DeviceSpec::default() }
}
