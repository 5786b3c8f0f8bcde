//! Tables on parameter servers, in a job whose workers hold copies of all other variables.
//!
//! The parts of partitioned variables, with their slots, are on the parameter servers and shared by all workers. Every
//! worker combines the gradients of all parts, and one worker, the part's owner, applies them. The workers update their
//! copies of the other variables only when all owners have updated their parts; so the parts have all updates of a step
//! that a worker has counted.
//!
//! Beside each part is its count, the number of steps whose updates the part has. The count equals the global step of
//! the workers, or is greater by one after a step that failed in the middle of its updates. When the workers repeat
//! that step, the part is not updated again.

use super::{AllReduceJob, AllReduceReplica};
use crate::error::Result;
use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::placement::VariablePlacement;
use crate::readiness::missing;
use crate::training::UpdateRule;
use crate::variables::{Variable, Variables, is_part};
use client::Session;
use graph::{DType, DeviceSpec, NodeId, Output, Scope};

/// The place of embedding tables, which are the variables that [`Variables::get_partitioned`] creates.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Tables {
    /// Every worker has a copy of the tables, like its copies of all other variables.
    #[default]
    Replicated,
    /// The tasks 0 to `ps_tasks - 1` of the job `ps` share the parts: each part is on one of them, with its slots.
    /// Variables that are not partitioned are on the workers, even if their gradients are sparse.
    OnParameterServers { ps_tasks: u32, placement: VariablePlacement },
}

impl Tables {
    /// Returns the number of parameter servers; `None` if every worker has the tables.
    pub(crate) fn ps_tasks(&self) -> Option<u32> {
        match self {
            Tables::Replicated => None,
            Tables::OnParameterServers { ps_tasks, .. } => Some(*ps_tasks),
        }
    }

    /// Returns the scope in which a worker creates variables; `None` if all of them are on the worker.
    pub(crate) fn scope(&self, scope: &Scope, worker: u32) -> Option<Scope> {
        let Tables::OnParameterServers { ps_tasks, placement } = self else { return None };
        let setter = placement.device_setter(*ps_tasks, worker)?;
        let on_worker = crate::placement::worker_device(worker);
        Some(scope.device_fn(move |node| if is_part(node) { setter(node) } else { on_worker.clone() }))
    }
}

impl AllReduceJob {
    /// Returns whether all workers share a variable, because it is on a parameter server.
    pub(super) fn is_shared(self, scope: &Scope, variable: &Variable) -> bool {
        let device =
            scope.read(|graph, _| graph.node(variable.handle.node).device.clone()).unwrap_or_default();
        let device = DeviceSpec::parse(&device).unwrap_or_default();
        self.ps_tasks.is_some() && device.job.as_deref() == Some("ps")
    }
}

/// The update of all parts on parameter servers in a step.
pub(super) struct TableUpdate<'a> {
    pub(super) job: AllReduceJob,
    pub(super) scope: &'a Scope,
    pub(super) variables: &'a Variables,
    pub(super) rule: &'a UpdateRule<'a>,
    /// The node that ends when all combined gradients have arrived.
    pub(super) arrived: NodeId,
    /// False in a step for which no worker has a batch, a scalar `bool`; `None` if there is always one.
    pub(super) has_any: Option<Output>,
}

impl TableUpdate<'_> {
    /// Adds the updates of the parts by their combined gradients. Returns the parts, and the nodes that update the
    /// parts that this worker owns.
    pub(super) fn build(&self, gradients: &[(Variable, Gradient)]) -> (SharedParts, Vec<NodeId>) {
        let parts = SharedParts::new(self.scope, self.variables, gradients);
        let mut owned = Vec::new();
        for (i, (gradient, count)) in gradients.iter().zip(&parts.counts).enumerate() {
            // Nodes for the parts of other owners are added too, because they create slots, which the chief saves; the
            // updates among them are pruned.
            let updated = self.update(gradient, count);
            if i % self.job.workers as usize == self.job.worker as usize {
                owned.extend(updated);
            }
        }
        (parts, owned)
    }

    /// Adds the update of a part, unless the part has the step's update already.
    fn update(&self, gradient: &(Variable, Gradient), count: &Variable) -> Vec<NodeId> {
        let host = self.scope.host_of(gradient.0.handle.node);
        let step = self.variables.global_step().value;
        let is_due = host.greater_equal(step, count.value);
        let is_due = match self.has_any {
            Some(has_any) => host.op("LogicalAnd").input(is_due).input(has_any).output(),
            None => is_due,
        };
        let update = |branch: &Scope| {
            let updated = self.rule.apply_one(&branch.control(&[self.arrived]), self.variables, gradient);
            let next = branch.add(step, branch.constant(1i64));
            let counted = branch.control(&[updated]).assign_variable(count.handle, next);
            vec![branch.control(&[counted]).constant(true)]
        };
        let updated = host.cond(is_due, update, |branch| vec![branch.constant(false)]);
        updated.iter().map(|output| output.node).collect()
    }
}

/// The parts of partitioned variables that are on parameter servers.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedParts {
    /// The names of the parts.
    names: Vec<String>,
    /// The number of steps whose updates each part has, a scalar `int64` beside the part. Counts are not saved:
    /// checkpoints are the same for all strategies.
    counts: Vec<Variable>,
    /// The name of each count, with a scalar `bool` that is true if the count has a value.
    probes: Vec<(String, Output)>,
    /// The nodes that set the counts to the global step. `shut` has the nodes that remove the counts.
    pub(super) open: Vec<NodeId>,
    pub(super) shut: Vec<NodeId>,
}

impl SharedParts {
    /// Adds the counts of the parts in `gradients`.
    fn new(scope: &Scope, variables: &Variables, gradients: &[(Variable, Gradient)]) -> SharedParts {
        if gradients.is_empty() {
            return SharedParts::default();
        }
        let state = Variables::new(scope);
        let count = |(part, _): &(Variable, Gradient)| {
            let name = format!("{}/all_reduce_steps", part.name);
            state.beside(part).get_untrained(&name, DType::Int64, &[], &Initializer::Zeros)
        };
        let counts: Vec<Variable> = gradients.iter().map(count).collect();
        let beside = |count: &Variable| scope.colocate_with(count.handle.node);
        let step = variables.global_step().value;
        SharedParts {
            names: gradients.iter().map(|(part, _)| part.name.clone()).collect(),
            open: counts.iter().map(|count| beside(count).assign_variable(count.handle, step)).collect(),
            shut: counts.iter().map(|count| beside(count).destroy_resource(count.handle)).collect(),
            probes: state.are_initialized(),
            counts,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

impl AllReduceReplica {
    /// Returns the names of the counts of parts that have no value.
    pub(crate) fn missing_counts(&self, session: &Session) -> Result<Vec<String>> {
        if self.shared.is_empty() { Ok(Vec::new()) } else { missing(session, &self.shared.probes) }
    }

    /// Returns the names of the parts whose count is neither `step` nor `step` + 1. All counts must have values.
    pub(crate) fn parts_out_of_step(&self, session: &Session, step: i64) -> Result<Vec<String>> {
        if self.shared.is_empty() {
            return Ok(Vec::new());
        }
        let SharedParts { names, counts, .. } = &self.shared;
        let fetches: Vec<Output> = counts.iter().map(|count| count.value).collect();
        let mut out_of_step = Vec::new();
        for (name, count) in names.iter().zip(session.run(&[], &fetches, &[])?) {
            if !(step..=step + 1).contains(&count.item::<i64>()?) {
                out_of_step.push(name.clone());
            }
        }
        Ok(out_of_step)
    }
}
