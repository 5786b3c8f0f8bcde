//! The graph of a replica of a synchronous job: the nodes that its worker runs, and the nodes that it runs as the
//! chief.

use super::accumulators::Accumulators;
use super::gradient_buffers::GradientBuffers;
use super::queue::Queue;
use super::roster::Roster;
use super::shutdown::LeaveNodes;
use super::two_phase::TwoPhaseUpdate;
use crate::gradient::Gradient;
use crate::initializer::Initializer;
use crate::strategy::Aggregation;
use crate::training::UpdateRule;
use crate::variables::{Variable, Variables};
use graph::{DType, NodeId, Output, PartialShape, Scope, Shape, Tensor};

/// The initial entry of each worker in `sync_rep_pushed`, `sync_rep_answered` and `sync_rep_left`: no step pushed, no
/// push answered by a token, not left.
pub(super) const UNSET: i64 = -1;

/// The entry in `sync_rep_pushed` of a worker that has finished.
pub(super) const FINISHED: i64 = i64::MAX;

/// The nodes of a replica of a synchronous job, with its worker index, the number of workers, and the number of
/// gradients per update.
#[derive(Clone, Debug)]
pub struct SyncReplicas {
    /// The index of this worker.
    pub worker: usize,
    /// The number of workers in the job.
    pub workers: usize,
    /// The number of gradients that an update needs.
    pub replicas_to_aggregate: usize,
    pub(crate) gradients: GradientStore,
    /// True if `sync_rep_pushed` has a value, which the chief assigns last: a scalar `bool`.
    pub(super) is_open: Output,
    pub(super) global_step: Output,
    pub(super) roster: Roster,
    pub(crate) worker_nodes: WorkerNodes,
    pub(super) chief_nodes: ChiefNodes,
}

/// The nodes that every replica runs for its own worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerNodes {
    /// Sets this replica's local step to the global step.
    pub(super) adopt_step: NodeId,
    /// Records the local step in `sync_rep_pushed` after the gradients have been pushed, and wakes the chief.
    pub(crate) report: NodeId,
    /// Records in `sync_rep_pushed` that this worker pushes no more gradients, and wakes the chief.
    pub(super) finish: NodeId,
    pub(super) leave: LeaveNodes,
    /// The step that this replica's gradients were computed at.
    pub(crate) local_step: Output,
    /// True if the global step had passed the local step when the gradients were computed.
    pub(crate) is_stale: Output,
    /// The queue that this replica takes its tokens from.
    pub(super) tokens: Queue,
}

/// The nodes that the chief runs for the whole job.
#[derive(Clone, Debug)]
pub(super) struct ChiefNodes {
    /// The smallest number of gradients in any variable's accumulator; 0 without accumulators.
    pub(super) accumulated: Output,
    /// The indices of workers that have pushed or finished.
    pub(super) arrivals: Queue,
    /// Destroys `sync_rep_pushed`, so that workers that join wait.
    pub(super) shut: NodeId,
    /// Initialises all state of the job except `sync_rep_pushed`.
    pub(super) initialize: NodeId,
    /// Initialises `sync_rep_pushed`, so that workers that wait to join continue.
    pub(super) open: NodeId,
    pub(super) update: TwoPhaseUpdate,
    /// Enqueues tokens that contain the global step, without an update.
    pub(super) release: NodeId,
    /// The next value of `sync_rep_answered`, fed to an update and to `release`: a vector of `int64`.
    pub(super) next_answered: Output,
    pub(super) drops: DropCounter,
}

/// The vector `sync_rep_dropped`: the number of dropped gradients by worker, `int64`.
#[derive(Clone, Debug)]
pub(super) struct DropCounter {
    pub(super) counts: Output,
    /// Adds `increments`, a vector of `int64` to be fed, to the counts.
    pub(super) add: NodeId,
    pub(super) increments: Output,
}

/// The storage on the parameter servers for gradients that have been pushed and not yet applied.
#[derive(Clone, Debug)]
pub(crate) enum GradientStore {
    InOrder(GradientBuffers),
    Accumulators(Accumulators),
}

impl GradientStore {
    /// Returns the placeholder for the workers that get tokens, or for the number of tokens if all workers share one
    /// queue.
    fn receivers(&self) -> Output {
        match self {
            GradientStore::InOrder(buffers) => buffers.contributors,
            GradientStore::Accumulators(accumulators) => accumulators.tokens,
        }
    }
}

/// Builds the graph of a replica of a synchronous job.
pub(crate) struct ReplicaBuilder<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) variables: &'a Variables,
    pub(crate) rule: &'a UpdateRule<'a>,
    pub(crate) worker: usize,
    pub(crate) workers: usize,
    pub(crate) required: usize,
}

/// The variables and queues of the job that the nodes of both the worker and the chief use.
pub(super) struct SharedNodes {
    /// The scope that places nodes on the device of the global step.
    pub(super) at: Scope,
    pub(super) global_step: Variable,
    /// The job's variables except `sync_rep_pushed`. No checkpoint contains them: a job that resumes from a checkpoint
    /// initialises them again.
    pub(super) state: Variables,
    /// The collection of the variable `sync_rep_pushed` alone, which is initialised after all other variables.
    open_state: Variables,
    pushed: Variable,
    pub(super) answered: Variable,
    dropped: Variable,
    left: Variable,
    local_step: Variable,
    arrivals: Queue,
    token_queues: Vec<Queue>,
    pub(super) gradients: GradientStore,
}

/// The nodes of a worker's training step.
struct WorkerStep {
    /// The whole step, which ends when the worker has dequeued its token.
    train: NodeId,
    is_stale: Output,
    /// Records the push in `sync_rep_pushed`.
    mark_pushed: NodeId,
    /// Records the end of this worker in `sync_rep_pushed`.
    mark_finished: NodeId,
    leave: LeaveNodes,
}

/// The nodes and placeholders of the chief's update.
struct ChiefUpdate {
    update: TwoPhaseUpdate,
    next_answered: Output,
    drop_increments: Output,
    accumulated: Output,
    /// The nodes that initialise the job's state.
    initializers: Vec<NodeId>,
}

impl ReplicaBuilder<'_> {
    /// Adds a replica's graph. Returns its training step, which ends when the worker has dequeued its token.
    ///
    /// The worker's and the chief's nodes are each added in two stages, because generated node names depend on the
    /// order in which nodes are added.
    pub(crate) fn build(
        &self,
        gradients: &[(Variable, Gradient)],
        aggregation: Aggregation,
    ) -> (NodeId, SyncReplicas) {
        let (shared, pushes) = self.shared_nodes(gradients, aggregation);
        let roster = shared.roster();
        let step = self.worker_step(&shared, &pushes, gradients);
        let update = self.chief_update(&shared, gradients);
        let train = step.train;
        let replicas = SyncReplicas {
            worker: self.worker,
            workers: self.workers,
            replicas_to_aggregate: self.required,
            is_open: shared.at.var_is_initialized(shared.pushed.handle),
            worker_nodes: self.worker_nodes(&shared, step),
            chief_nodes: self.chief_nodes(&shared, update),
            roster,
            global_step: shared.global_step.value,
            gradients: shared.gradients,
        };
        (train, replicas)
    }

    /// Adds the job's variables and queues, and the nodes that push the worker's gradients, which are returned second.
    fn shared_nodes(
        &self,
        gradients: &[(Variable, Gradient)],
        aggregation: Aggregation,
    ) -> (SharedNodes, Vec<NodeId>) {
        let scope = self.scope;
        let global_step = self.variables.global_step();
        let at = scope.colocate_with(global_step.handle.node);
        let state = Variables::new(&at);
        let by_worker = |name: &str, first: i64| {
            let first = Initializer::Constant(first as f64);
            state.get_untrained(name, DType::Int64, &[self.workers], &first)
        };
        let answered = by_worker("sync_rep_answered", UNSET);
        let dropped = by_worker("sync_rep_dropped", 0);
        let left = by_worker("sync_rep_left", UNSET);
        let local_step =
            Variables::new(scope).get_local(&format!("sync_rep_local_step_{}", self.worker), DType::Int64);
        let arrivals = Queue::new(&at, "sync_rep_arrivals", DType::Int32);

        let (pushes, store, token_queues) = match aggregation {
            Aggregation::InOrder => {
                let buffers = GradientBuffers::new(&state, self.workers, gradients);
                let tokens = |w| Queue::new(&at, &format!("sync_token_q/{w}"), DType::Int64);
                let pushes = buffers.push(scope, self.worker, gradients);
                (pushes, GradientStore::InOrder(buffers), (0..self.workers).map(tokens).collect::<Vec<_>>())
            }
            Aggregation::Accumulators => {
                let accumulators = Accumulators::new(scope, gradients, global_step.value);
                let pushes = accumulators.push(scope, local_step.value, gradients);
                let tokens = Queue::new(&at, "sync_token_q", DType::Int64);
                (pushes, GradientStore::Accumulators(accumulators), vec![tokens])
            }
        };
        let open_state = Variables::new(&at);
        let first = Initializer::Constant(UNSET as f64);
        let pushed = open_state.get_untrained("sync_rep_pushed", DType::Int64, &[self.workers], &first);
        let shared = SharedNodes {
            at,
            global_step,
            state,
            open_state,
            pushed,
            answered,
            dropped,
            left,
            local_step,
            arrivals,
            token_queues,
            gradients: store,
        };
        (shared, pushes)
    }

    /// Adds the worker's training step: the pushes of gradients, the records in `sync_rep_pushed`, and the wait for a
    /// token.
    fn worker_step(
        &self,
        shared: &SharedNodes,
        pushes: &[NodeId],
        gradients: &[(Variable, Gradient)],
    ) -> WorkerStep {
        let SharedNodes { at, pushed, local_step, .. } = shared;
        let me = at.constant_vector(&[self.worker as i64]);
        let computed: Vec<NodeId> = gradients.iter().map(|(_, gradient)| gradient.values().node).collect();
        let current = at.control(&computed).read_variable(shared.global_step.handle, DType::Int64);
        let is_stale = at.op("Greater").input(current).input(local_step.value).output();
        let then = at.control(pushes);
        let mark = then.resource_scatter_update(pushed.handle, me, at.expand_dims(local_step.value, 0));
        let mark_pushed = match &shared.gradients {
            // Late gradients in buffers are counted by the chief.
            GradientStore::InOrder(_) => mark,
            GradientStore::Accumulators(_) => {
                let late = at.expand_dims(at.cast(is_stale, DType::Int64), 0);
                at.group(&[mark, at.resource_scatter_add(shared.dropped.handle, me, late)])
            }
        };
        let mark_finished = at.resource_scatter_update(pushed.handle, me, at.constant_vector(&[FINISHED]));
        let mark = self.scope.placeholder("sync_rep_left/mark", DType::Int64, PartialShape::from([1]));
        let leave = at.resource_scatter_update(shared.left.handle, me, mark);
        let token = self.own_tokens(shared).dequeue(&then);
        let train = self.scope.assign_variable(local_step.handle, token);
        WorkerStep { train, is_stale, mark_pushed, mark_finished, leave: LeaveNodes { leave, mark } }
    }

    /// Adds the worker's nodes outside of its training step.
    fn worker_nodes(&self, shared: &SharedNodes, step: WorkerStep) -> WorkerNodes {
        WorkerNodes {
            adopt_step: self.scope.assign_variable(shared.local_step.handle, shared.global_step.value),
            report: self.wake_chief(shared, step.mark_pushed),
            finish: self.wake_chief(shared, step.mark_finished),
            leave: step.leave,
            local_step: shared.local_step.value,
            is_stale: step.is_stale,
            tokens: self.own_tokens(shared).clone(),
        }
    }

    /// Adds the chief's update, and then collects the initializers of the job's state, to which the update adds
    /// variables.
    fn chief_update(&self, shared: &SharedNodes, gradients: &[(Variable, Gradient)]) -> ChiefUpdate {
        let by_worker =
            |name: &str| self.scope.placeholder(name, DType::Int64, PartialShape::from([self.workers]));
        let next_answered = by_worker("sync_rep_answered/next");
        let update = self.two_phase_update(shared, gradients, next_answered);
        let drop_increments = by_worker("sync_rep_dropped/new");
        let mut initializers = vec![shared.state.initializer()];
        let accumulated = match &shared.gradients {
            GradientStore::InOrder(buffers) => {
                initializers.extend(buffers.initializers());
                shared.at.constant(0i32)
            }
            GradientStore::Accumulators(accumulators) => {
                initializers.push(accumulators.set_steps);
                accumulators.min_count(&shared.at)
            }
        };
        ChiefUpdate { update, next_answered, drop_increments, accumulated, initializers }
    }

    /// Adds the nodes that the chief runs besides the update.
    fn chief_nodes(&self, shared: &SharedNodes, chief: ChiefUpdate) -> ChiefNodes {
        let SharedNodes { at, pushed, dropped, .. } = shared;
        let ChiefUpdate { update, next_answered, drop_increments, accumulated, initializers } = chief;
        ChiefNodes {
            accumulated,
            arrivals: shared.arrivals.clone(),
            shut: at.op("DestroyResourceOp").input(pushed.handle).attr("ignore_lookup_error", true).node(),
            initialize: self.scope.group(&initializers),
            open: shared.open_state.initializer(),
            update,
            release: shared.release(&[], shared.gradients.receivers(), next_answered),
            next_answered,
            drops: DropCounter {
                counts: dropped.value,
                add: at.assign_add_variable(dropped.handle, drop_increments),
                increments: drop_increments,
            },
        }
    }

    /// Adds a node that runs after `after` and wakes the chief by enqueuing this worker's index in `sync_rep_arrivals`.
    fn wake_chief(&self, shared: &SharedNodes, after: NodeId) -> NodeId {
        let then = shared.at.control(&[after]);
        shared.arrivals.enqueue(&then, then.constant(self.worker as i32))
    }

    /// Returns the queue from which this worker takes tokens: its own queue, or the only queue, which all workers
    /// share.
    fn own_tokens<'s>(&self, shared: &'s SharedNodes) -> &'s Queue {
        &shared.token_queues[self.worker.min(shared.token_queues.len() - 1)]
    }
}

impl SharedNodes {
    /// Adds the nodes that read and write the rows of `sync_rep_pushed`, `sync_rep_answered` and `sync_rep_left`.
    fn roster(&self) -> Roster {
        let vectors = [&self.pushed, &self.answered, &self.left].map(|vector| (vector.handle, vector.value));
        Roster::new(&self.at, vectors)
    }

    /// Adds a node that, after `after`, enqueues tokens for `receivers` and assigns `next_answered` to
    /// `sync_rep_answered`.
    pub(super) fn release(&self, after: &[NodeId], receivers: Output, next_answered: Output) -> NodeId {
        let then = self.at.control(after);
        let step = then.read_variable(self.global_step.handle, DType::Int64);
        let receivers = then.cast(receivers, DType::Int32);
        let counts = then.unpack(receivers, self.token_queues.len(), 0);
        let give = |(queue, count): (&Queue, Output)| {
            queue.enqueue_many(&then, then.fill(then.expand_dims(count, 0), step))
        };
        let tokens: Vec<NodeId> = self.token_queues.iter().zip(counts).map(give).collect();
        then.control(&tokens).assign_variable(self.answered.handle, next_answered)
    }
}

impl Variables {
    /// Returns a scalar variable that is on this replica's own device and that no other replica uses.
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
