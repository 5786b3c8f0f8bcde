//! The graph of the chief's update, which is a two-phase commit.

use super::replica::{GradientStore, ReplicaBuilder, SharedNodes, UNSET};
use super::staged::{StagedUpdate, UpdateMode};
use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape};
use std::collections::BTreeMap;

/// An update of the variables, in two steps of the session.
///
/// The first step prepares: it takes gradients from the gradient store and computes staged values, on each device
/// independently. The second step commits, once the first has ended on all devices: it assigns the staged values to
/// the variables, counts the step, and hands out tokens to the workers that pushed. A commit may be repeated.
#[derive(Clone, Debug)]
pub(super) struct TwoPhaseUpdate {
    pub(super) prepare: NodeId,
    pub(super) commit: NodeId,
    /// The random number that identifies an attempt at the update, a scalar `int64` to be fed.
    pub(super) attempt: Output,
    /// The last attempt that each device has prepared, a vector of `int64`.
    pub(super) prepared: Output,
    /// The last attempt that each device has committed, a vector of `int64`.
    pub(super) committed: Output,
    /// The number of the last attempt that began to take gradients from the accumulators, a scalar `int64`. It is stored
    /// because each gradient can be taken only once.
    pub(super) taking: Output,
    /// Sets `taking` to [`UNSET`], because no attempt is taking gradients any more.
    pub(super) forget_taking: NodeId,
}

impl TwoPhaseUpdate {
    /// Returns the attempt numbers to fetch: prepared, committed, taking.
    pub(super) fn fetches(&self) -> [Output; 3] {
        [self.prepared, self.committed, self.taking]
    }
}

impl ReplicaBuilder<'_> {
    /// Adds the nodes of an update. Its commit assigns the fed `next_answered` to `sync_rep_answered`, and hands out a
    /// token to each worker whose entry changes.
    pub(super) fn two_phase_update(
        &self,
        shared: &SharedNodes,
        gradients: &[(Variable, Gradient)],
        next_answered: Output,
    ) -> TwoPhaseUpdate {
        let SharedNodes { at, state, answered, .. } = shared;
        let global_step = self.variables.global_step();
        let number = |beside: &Variables, name: &str| {
            beside.get_untrained(name, DType::Int64, &[], &Initializer::Value(UNSET.into()))
        };
        let attempt = self.scope.placeholder("sync_rep_attempt", DType::Int64, PartialShape::scalar());
        let taking = number(state, "sync_rep_taking");
        let means = match &shared.gradients {
            GradientStore::InOrder(buffers) => buffers.means(self.scope, gradients),
            GradientStore::Accumulators(accumulators) => {
                let begun = at.assign_variable(taking.handle, attempt);
                accumulators.means(&self.scope.control(&[begun]), gradients)
            }
        };
        let staged = StagedUpdate::new(self.scope, self.rule.options.moving_average.is_none());
        let prepared = self.rule.changes(self.scope, self.variables, &means, UpdateMode::Staged(&staged));
        let committed = staged.commit();

        // The commit may be repeated, so its inputs besides the staged values are saved in variables too.
        let updating = number(state, "sync_rep_updating");
        let stage = |name: &str, value: Output| {
            let first = Initializer::Zeros;
            let shape = at.shape(value).as_shape().unwrap_or(Shape::scalar());
            let variable = state.get_untrained(name, at.dtype(value), shape.dims(), &first);
            (variable.clone(), at.assign_variable(variable.handle, value))
        };
        let (answering, answering_is_staged) = stage("sync_rep_answering", next_answered);
        let step_is_staged = at.assign_variable(updating.handle, global_step.value);
        let mut inputs_are_staged = vec![answering_is_staged, step_is_staged];
        let receivers = match &shared.gradients {
            // A worker that was answered before the commit was interrupted gets no second token.
            GradientStore::InOrder(_) => {
                at.op("NotEqual").input(answered.value).input(answering.value).output()
            }
            GradientStore::Accumulators(accumulators) => {
                let (tokens, tokens_are_staged) = stage("sync_rep_receivers", accumulators.tokens);
                inputs_are_staged.push(tokens_are_staged);
                tokens.value
            }
        };

        let mut done = Vec::new();
        let [mut all_prepared, mut all_committed] = [Vec::new(), Vec::new()];
        let mut count_attempt = |beside: &Variables, prepared: &[NodeId], committed: &[NodeId]| {
            let index = all_prepared.len();
            let last_prepared = number(beside, &format!("sync_rep_prepared/{index}"));
            let last_committed = number(beside, &format!("sync_rep_committed/{index}"));
            let scope = beside.scope();
            done.push(scope.control(prepared).assign_variable(last_prepared.handle, attempt));
            let then = scope.control(committed);
            let number = then.read_variable(last_prepared.handle, DType::Int64);
            all_prepared.push(last_prepared.value);
            all_committed.push(last_committed.value);
            then.assign_variable(last_committed.handle, number)
        };
        let devices_committed: Vec<NodeId> = group_by_device(self.scope, &prepared, &committed)
            .iter()
            .map(|nodes| count_attempt(&state.beside(&nodes.beside), &nodes.prepared, &nodes.committed))
            .collect();
        let next_step = at.add(updating.value, at.constant(1i64));
        let counted = at.control(&devices_committed).assign_variable(global_step.handle, next_step);
        let released = shared.release(&[counted], receivers, answering.value);
        let commit = count_attempt(state, &inputs_are_staged, &[released]);
        TwoPhaseUpdate {
            prepare: at.group(&done),
            commit,
            attempt,
            prepared: at.pack(&all_prepared, 0),
            committed: at.pack(&all_committed, 0),
            taking: taking.value,
            forget_taking: at.assign_variable(taking.handle, at.constant(UNSET)),
        }
    }
}

/// The nodes of a two-phase update on one device.
struct DeviceNodes {
    /// A variable on the device, beside which further nodes are placed.
    beside: Variable,
    /// The nodes that stage values.
    prepared: Vec<NodeId>,
    /// The nodes that assign staged values to variables.
    committed: Vec<NodeId>,
}

/// Groups nodes by the device of their variable, in the order of the device names.
fn group_by_device(
    scope: &Scope,
    prepared: &[(Variable, NodeId)],
    committed: &[(Variable, NodeId)],
) -> Vec<DeviceNodes> {
    let mut devices: BTreeMap<String, DeviceNodes> = BTreeMap::new();
    let nodes = prepared.iter().map(|node| (node, false)).chain(committed.iter().map(|node| (node, true)));
    for ((variable, node), is_commit) in nodes {
        let device = scope.read(|graph, _| graph.node(variable.handle.node).device.to_string());
        let nodes = devices.entry(device.unwrap_or_default()).or_insert_with(|| DeviceNodes {
            beside: variable.clone(),
            prepared: Vec::new(),
            committed: Vec::new(),
        });
        if is_commit { &mut nodes.committed } else { &mut nodes.prepared }.push(*node);
    }
    devices.into_values().collect()
}
