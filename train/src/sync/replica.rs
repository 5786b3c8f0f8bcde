//! The graph of synchronous training: what a worker runs, and what the chief runs besides.

use super::accumulators::Accumulators;
use super::in_order::InOrder;
use super::queue::Queue;
use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::strategy::Aggregation;
use crate::training::Update;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape, Tensor};
use std::collections::BTreeMap;

/// What stands in `sync_rep_pushed` for a worker that has not pushed yet, and for one that has finished.
pub(super) const NOTHING: i64 = -1;
pub(super) const FINISHED: i64 = i64::MAX;

/// A replica of a synchronous job.
#[derive(Clone, Debug)]
pub struct SyncReplicas {
    /// Which worker this is, of how many.
    pub worker: usize,
    pub workers: usize,
    /// How many gradients make a step.
    pub replicas_to_aggregate: usize,
    pub(crate) places: Places,
    /// Whether `sync_rep_pushed` has a value: the chief has made everything ready.
    pub(crate) is_open: Output,

    // What a worker runs.
    /// The step of this replica becomes the global one.
    pub(crate) adopt_step: NodeId,
    /// After the pushes: says so, and wakes the chief.
    pub(crate) report: NodeId,
    /// Says that no more pushes come.
    pub(crate) finish: NodeId,
    /// The step that this replica's gradients are of, and whether the global one was another by then.
    pub(crate) local_step: Output,
    pub(crate) is_stale: Output,
    /// This replica's tokens.
    pub(super) tokens: Queue,

    // What the chief runs.
    pub(super) view: View,
    pub(super) arrivals: Queue,
    /// Takes away `sync_rep_pushed`.
    pub(super) shut: NodeId,
    /// First values of all but `sync_rep_pushed`, and of that.
    pub(super) initialize: NodeId,
    pub(super) open: NodeId,
    /// One update: of gradients as [`SyncReplicas::places`] is told, then tokens for those who pushed them.
    pub(super) update: NodeId,
    /// Tokens that hold the global step, without an update.
    pub(super) release: NodeId,
    /// What `update` and `release` note as answered, a vector of `int64` to be fed.
    pub(super) answered: Output,
    /// Gradients dropped so far by worker, a vector of `int64`, and more of them, to be fed.
    pub(crate) dropped: Output,
    pub(super) drop: NodeId,
    pub(super) newly_dropped: Output,
}

/// Where gradients wait.
#[derive(Clone, Debug)]
pub(crate) enum Places {
    InOrder(InOrder),
    Accumulators(Accumulators),
}

/// What the chief looks at, in the order of [`View::fetches`].
#[derive(Clone, Debug)]
pub(super) struct View {
    global_step: Output,
    pushed: Output,
    answered: Output,
    updating: Output,
    /// How many gradients each variable's accumulator has at least; 0 without accumulators.
    accumulated: Output,
}

impl View {
    pub(super) fn fetches(&self) -> [Output; 5] {
        [self.global_step, self.pushed, self.answered, self.updating, self.accumulated]
    }
}

/// What a replica's graph is made of.
pub(crate) struct Build<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) variables: &'a Variables,
    pub(crate) update: &'a Update<'a>,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) required: usize,
}

impl Build<'_> {
    /// Adds the replica's step, which ends with a token, and the rest.
    pub(crate) fn replicas(
        &self,
        gradients: &[(Variable, Gradient)],
        aggregation: Aggregation,
    ) -> (NodeId, SyncReplicas) {
        let scope = self.scope;
        let global_step = self.variables.global_step();
        let at = scope.colocate_with(global_step.handle.node);
        // None of these is saved: a job that goes on from a checkpoint starts them anew.
        let state = Variables::new(&at);
        let number = |name: &str, first: i64| {
            state.get_untrained(name, DType::Int64, &[], &Initializer::Value(first.into()))
        };
        let by_worker = |name: &str, first: i64| {
            let first = Initializer::Constant(first as f64);
            state.get_untrained(name, DType::Int64, &[self.workers], &first)
        };
        let answered = by_worker("sync_rep_answered", NOTHING);
        let dropped = by_worker("sync_rep_dropped", 0);
        let updating = number("sync_rep_updating", NOTHING);
        let local =
            Variables::new(scope).get_local(&format!("sync_rep_local_step_{}", self.worker), DType::Int64);
        let arrivals = Queue::new(&at, "sync_rep_arrivals", DType::Int32);

        let (pushes, places, token_queues) = match aggregation {
            Aggregation::InOrder => {
                let places = InOrder::new(&state, self.workers, gradients);
                let tokens = |w| Queue::new(&at, &format!("sync_token_q/{w}"), DType::Int64);
                let pushes = places.push(scope, self.worker, gradients);
                (pushes, Places::InOrder(places), (0..self.workers).map(tokens).collect::<Vec<_>>())
            }
            Aggregation::Accumulators => {
                let places = Accumulators::new(scope, gradients, global_step.value);
                let pushes = places.push(scope, local.value, gradients);
                let tokens = Queue::new(&at, "sync_token_q", DType::Int64);
                (pushes, Places::Accumulators(places), vec![tokens])
            }
        };
        let open_state = Variables::new(&at);
        let first = Initializer::Constant(NOTHING as f64);
        let pushed = open_state.get_untrained("sync_rep_pushed", DType::Int64, &[self.workers], &first);
        let me = at.constant_vector(&[self.worker as i64]);
        let wake = |after: NodeId| {
            let then = at.control(&[after]);
            arrivals.enqueue(&then, then.constant(self.worker as i32))
        };

        // The worker's part.
        let computed: Vec<NodeId> = gradients.iter().map(|(_, gradient)| gradient.values().node).collect();
        let seen = at.control(&computed).read_variable(global_step.handle, DType::Int64);
        let is_stale = at.op("Greater").input(seen).input(local.value).output();
        let then = at.control(&pushes);
        let mark = then.resource_scatter_update(pushed.handle, me, at.expand_dims(local.value, 0));
        let said = match &places {
            // The chief sees itself what is late.
            Places::InOrder(_) => mark,
            Places::Accumulators(_) => {
                let late = at.expand_dims(at.cast(is_stale, DType::Int64), 0);
                at.group(&[mark, at.resource_scatter_add(dropped.handle, me, late)])
            }
        };
        let finished = at.resource_scatter_update(pushed.handle, me, at.constant_vector(&[FINISHED]));
        let own_tokens = &token_queues[self.worker.min(token_queues.len() - 1)];
        let token = own_tokens.dequeue(&then);
        let train = scope.assign_variable(local.handle, token);

        // The chief's part.
        let next_answered =
            scope.placeholder("sync_rep_answered/next", DType::Int64, PartialShape::from([self.workers]));
        let begun = at.assign_variable(updating.handle, global_step.value);
        let chief = scope.control(&[begun]);
        let means = match &places {
            Places::InOrder(places) => places.means(&chief, gradients),
            Places::Accumulators(places) => places.means(&chief, gradients),
        };
        // Who pushes again meanwhile, of variables that are half way, comes too late.
        let all_read = all_done(&chief, &at, &means);
        let updated = self.update.apply(&scope.control(&[all_read]), self.variables, &means);
        let give_tokens = |after: &[NodeId]| {
            let then = at.control(after);
            let step = then.read_variable(global_step.handle, DType::Int64);
            let tokens: Vec<NodeId> = match &places {
                Places::InOrder(places) => {
                    let wanted = places.contributors_as(&then, DType::Int32);
                    let fill = |(queue, wanted): (&Queue, Output)| {
                        let count = then.expand_dims(wanted, 0);
                        queue.enqueue_many(&then, then.fill(count, step))
                    };
                    token_queues.iter().zip(wanted).map(fill).collect()
                }
                Places::Accumulators(places) => {
                    let fill = |queue: &Queue| queue.enqueue_many(&then, then.fill(places.tokens, step));
                    token_queues.iter().map(fill).collect()
                }
            };
            then.group(&[&tokens[..], &[then.assign_variable(answered.handle, next_answered)]].concat())
        };
        let newly_dropped =
            scope.placeholder("sync_rep_dropped/new", DType::Int64, PartialShape::from([self.workers]));
        let mut starts = vec![state.initializer()];
        let accumulated = match &places {
            Places::InOrder(places) => {
                starts.extend(places.initializers());
                at.constant(0i32)
            }
            Places::Accumulators(places) => {
                starts.push(places.set_steps);
                places.least(&at)
            }
        };
        let replicas = SyncReplicas {
            worker: self.worker,
            workers: self.workers,
            replicas_to_aggregate: self.required,
            is_open: at.var_is_initialized(pushed.handle),
            adopt_step: scope.assign_variable(local.handle, global_step.value),
            report: wake(said),
            finish: wake(finished),
            local_step: local.value,
            is_stale,
            tokens: own_tokens.clone(),
            view: View {
                global_step: global_step.value,
                pushed: pushed.value,
                answered: answered.value,
                updating: updating.value,
                accumulated,
            },
            arrivals,
            shut: at.op("DestroyResourceOp").input(pushed.handle).attr("ignore_lookup_error", true).node(),
            initialize: scope.group(&starts),
            open: open_state.initializer(),
            update: give_tokens(&[updated]),
            release: give_tokens(&[]),
            answered: next_answered,
            dropped: dropped.value,
            drop: at.assign_add_variable(dropped.handle, newly_dropped),
            newly_dropped,
            places,
        };
        (train, replicas)
    }
}

/// Done where `at` is when all gradients are there; each device says so once.
fn all_done(scope: &Scope, at: &Scope, gradients: &[(Variable, Gradient)]) -> NodeId {
    let mut by_device: BTreeMap<String, (NodeId, Vec<NodeId>)> = BTreeMap::new();
    for (variable, gradient) in gradients {
        let beside = variable.handle.node;
        let device = scope.read(|graph, _| graph.node(beside).device.to_string()).unwrap_or_default();
        let of_device = by_device.entry(device).or_insert_with(|| (beside, Vec::new()));
        of_device.1.push(gradient.values().node);
    }
    let done = |(beside, nodes): &(NodeId, Vec<NodeId>)| scope.colocate_with(*beside).group(nodes);
    let done: Vec<NodeId> = by_device.values().map(done).collect();
    at.group(&done)
}

impl Variables {
    /// A scalar that this replica alone uses, on its own device.
    fn get_local(&self, name: &str, dtype: DType) -> Variable {
        let anchor = self.scope().no_op();
        let beside = Variables::new(&self.scope().colocate_with(anchor));
        match Tensor::zeros(dtype, Shape::scalar()) {
            Ok(zero) => beside.get_untrained(name, dtype, &[], &Initializer::Value(zero)),
            Err(error) => {
                self.scope().fail(error);
                beside.get_untrained(name, dtype, &[], &Initializer::Zeros)
            }
        }
    }
}
