//! Which parameter server a variable goes to.

use graph::Node;
use placer::{GreedyLoadBalancing, PsStrategy, RoundRobin, byte_size_load};
use std::fmt;
use std::sync::Arc;

/// Which parameter server a variable goes to. All replicas of a job must be told the same.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum VariablePlacement {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the fewest bytes so far.
    GreedyByBytes,
    /// The one with the least cost so far.
    GreedyByCost(VariableCost),
}

/// What a variable adds to the load of its parameter server: a function of the node that holds it, whose name, `dtype`
/// and `shape` are the variable's. Equal are clones of one.
#[derive(Clone)]
pub struct VariableCost(Arc<dyn Fn(&Node) -> f64 + Send + Sync>);

impl VariableCost {
    /// Costs are finite and at least 0, in any unit.
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
    pub(crate) fn strategy(&self, ps_tasks: u32) -> Box<dyn PsStrategy> {
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
