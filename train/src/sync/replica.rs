//! The graph of synchronous training: what a worker runs, and what the chief runs besides.

use super::accumulators::Accumulators;
use super::aside::{Aside, Writes};
use super::end::End;
use super::in_order::InOrder;
use super::queue::Queue;
use super::roster::Roster;
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
    pub(super) finish: NodeId,
    pub(super) end: End,
    /// The step that this replica's gradients are of, and whether the global one was another by then.
    pub(crate) local_step: Output,
    pub(crate) is_stale: Output,
    /// This replica's tokens.
    pub(super) tokens: Queue,

    pub(super) roster: Roster,

    // What the chief runs.
    pub(super) global_step: Output,
    /// How many gradients each variable's accumulator has at least; 0 without accumulators.
    pub(super) accumulated: Output,
    pub(super) arrivals: Queue,
    /// Takes away `sync_rep_pushed`.
    pub(super) shut: NodeId,
    /// First values of all but `sync_rep_pushed`, and of that.
    pub(super) initialize: NodeId,
    pub(super) open: NodeId,
    pub(super) update: Phases,
    /// Tokens that hold the global step, without an update.
    pub(super) release: NodeId,
    /// What an update and `release` note as answered, a vector of `int64` to be fed.
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

/// An update, in two steps of the session.
///
/// The first prepares: it takes gradients as [`SyncReplicas::places`] is told, and leaves next values aside, on each
/// device for itself. The second begins when the first has ended everywhere, and may be done over: it makes them the
/// variables' values, then counts the step and gives tokens to those who pushed.
#[derive(Clone, Debug)]
pub(super) struct Phases {
    pub(super) prepare: NodeId,
    pub(super) commit: NodeId,
    /// Which attempt it is, an `int64` to be fed: no other has its number.
    pub(super) attempt: Output,
    /// The last attempts that were prepared and committed on each device, and the last that began to take gradients
    /// where these cannot be taken twice: vectors of `int64`.
    pub(super) prepared: Output,
    pub(super) committed: Output,
    pub(super) taking: Output,
    /// Forgets that gradients were taken.
    pub(super) forget_taking: NodeId,
}

impl Phases {
    pub(super) fn fetches(&self) -> [Output; 3] {
        [self.prepared, self.committed, self.taking]
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
        let by_worker = |name: &str, first: i64| {
            let first = Initializer::Constant(first as f64);
            state.get_untrained(name, DType::Int64, &[self.workers], &first)
        };
        let answered = by_worker("sync_rep_answered", NOTHING);
        let dropped = by_worker("sync_rep_dropped", 0);
        let left = by_worker("sync_rep_left", NOTHING);
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
        let vectors = [&pushed, &answered, &left].map(|vector| (vector.handle, vector.value));
        let roster = Roster::new(&at, vectors);
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
        let mark = scope.placeholder("sync_rep_left/mark", DType::Int64, PartialShape::from([1]));
        let leave = at.resource_scatter_update(left.handle, me, mark);
        let own_tokens = &token_queues[self.worker.min(token_queues.len() - 1)];
        let token = own_tokens.dequeue(&then);
        let train = scope.assign_variable(local.handle, token);

        // The chief's part.
        let next_answered =
            scope.placeholder("sync_rep_answered/next", DType::Int64, PartialShape::from([self.workers]));
        let receivers = match &places {
            Places::InOrder(places) => places.contributors,
            Places::Accumulators(places) => places.tokens,
        };
        let release = |after: &[NodeId], receivers: Output, next_answered: Output| {
            let then = at.control(after);
            let step = then.read_variable(global_step.handle, DType::Int64);
            let receivers = then.cast(receivers, DType::Int32);
            let counts = then.unpack(receivers, token_queues.len(), 0);
            let give = |(queue, count): (&Queue, Output)| {
                queue.enqueue_many(&then, then.fill(then.expand_dims(count, 0), step))
            };
            let tokens: Vec<NodeId> = token_queues.iter().zip(counts).map(give).collect();
            then.control(&tokens).assign_variable(answered.handle, next_answered)
        };
        let update = self.phases(&state, &places, gradients, (&answered, next_answered), &release);
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
            end: End { leave, mark },
            local_step: local.value,
            is_stale,
            tokens: own_tokens.clone(),
            roster,
            global_step: global_step.value,
            accumulated,
            arrivals,
            shut: at.op("DestroyResourceOp").input(pushed.handle).attr("ignore_lookup_error", true).node(),
            initialize: scope.group(&starts),
            open: open_state.initializer(),
            update,
            release: release(&[], receivers, next_answered),
            answered: next_answered,
            dropped: dropped.value,
            drop: at.assign_add_variable(dropped.handle, newly_dropped),
            newly_dropped,
            places,
        };
        (train, replicas)
    }

    /// An update; `answered` becomes what is fed with it, and who that answers is `released` with a token.
    fn phases(
        &self,
        state: &Variables,
        places: &Places,
        gradients: &[(Variable, Gradient)],
        (answered, next_answered): (&Variable, Output),
        release: &dyn Fn(&[NodeId], Output, Output) -> NodeId,
    ) -> Phases {
        let at = state.scope();
        let global_step = self.variables.global_step();
        let number = |beside: &Variables, name: &str| {
            beside.get_untrained(name, DType::Int64, &[], &Initializer::Value(NOTHING.into()))
        };
        let attempt = self.scope.placeholder("sync_rep_attempt", DType::Int64, PartialShape::scalar());
        let taking = number(state, "sync_rep_taking");
        let means = match places {
            Places::InOrder(places) => places.means(self.scope, gradients),
            Places::Accumulators(places) => {
                let begun = at.assign_variable(taking.handle, attempt);
                places.means(&self.scope.control(&[begun]), gradients)
            }
        };
        let aside = Aside::new(self.scope, self.update.options.moving_average.is_none());
        let prepared = self.update.changes(self.scope, self.variables, &means, Writes::Aside(&aside));
        let committed = aside.commit();

        // What the commit needs besides is a next value, too.
        let updating = number(state, "sync_rep_updating");
        let keep = |name: &str, value: Output| {
            let first = Initializer::Zeros;
            let shape = at.shape(value).as_shape().unwrap_or(Shape::scalar());
            let kept = state.get_untrained(name, at.dtype(value), shape.dims(), &first);
            (kept.clone(), at.assign_variable(kept.handle, value))
        };
        let (answering, keeps_answering) = keep("sync_rep_answering", next_answered);
        let keeps_step = at.assign_variable(updating.handle, global_step.value);
        let mut kept = vec![keeps_answering, keeps_step];
        let receivers = match places {
            // Who has been answered in an attempt that was cut off is not answered again.
            Places::InOrder(_) => at.op("NotEqual").input(answered.value).input(answering.value).output(),
            Places::Accumulators(places) => {
                let (tokens, keeps_tokens) = keep("sync_rep_receivers", places.tokens);
                kept.push(keeps_tokens);
                tokens.value
            }
        };

        let mut done = Vec::new();
        let [mut all_prepared, mut all_committed] = [Vec::new(), Vec::new()];
        let mut shard = |beside: &Variables, prepared: &[NodeId], committed: &[NodeId]| {
            let name = all_prepared.len();
            let last_prepared = number(beside, &format!("sync_rep_prepared/{name}"));
            let last_committed = number(beside, &format!("sync_rep_committed/{name}"));
            let scope = beside.scope();
            done.push(scope.control(prepared).assign_variable(last_prepared.handle, attempt));
            let then = scope.control(committed);
            let number = then.read_variable(last_prepared.handle, DType::Int64);
            all_prepared.push(last_prepared.value);
            all_committed.push(last_committed.value);
            then.assign_variable(last_committed.handle, number)
        };
        let of_shards: Vec<NodeId> = by_device(self.scope, &prepared, &committed)
            .iter()
            .map(|of| shard(&state.beside(&of.beside), &of.prepared, &of.committed))
            .collect();
        let next_step = at.add(updating.value, at.constant(1i64));
        let counted = at.control(&of_shards).assign_variable(global_step.handle, next_step);
        let released = release(&[counted], receivers, answering.value);
        let commit = shard(state, &kept, &[released]);
        Phases {
            prepare: at.group(&done),
            commit,
            attempt,
            prepared: at.pack(&all_prepared, 0),
            committed: at.pack(&all_committed, 0),
            taking: taking.value,
            forget_taking: at.assign_variable(taking.handle, at.constant(NOTHING)),
        }
    }
}

/// What is prepared and committed on one device, where this variable is.
struct Shard {
    beside: Variable,
    prepared: Vec<NodeId>,
    committed: Vec<NodeId>,
}

fn by_device(scope: &Scope, prepared: &[(Variable, NodeId)], committed: &[(Variable, NodeId)]) -> Vec<Shard> {
    let mut shards: BTreeMap<String, Shard> = BTreeMap::new();
    let nodes = prepared.iter().map(|node| (node, false)).chain(committed.iter().map(|node| (node, true)));
    for ((variable, node), is_commit) in nodes {
        let device = scope.read(|graph, _| graph.node(variable.handle.node).device.to_string());
        let shard = shards.entry(device.unwrap_or_default()).or_insert_with(|| Shard {
            beside: variable.clone(),
            prepared: Vec::new(),
            committed: Vec::new(),
        });
        if is_commit { &mut shard.committed } else { &mut shard.prepared }.push(*node);
    }
    shards.into_values().collect()
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
