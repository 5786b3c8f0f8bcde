//! The meeting of an epoch's workers when they have opened their sessions. The workers compare their global steps, and
//! the most advanced worker (of several the one with the lowest index) sends its variables to the others. No file is
//! needed. If no worker has values of one step, the chief initialises or restores its own variables, and the workers
//! meet again.
//!
//! A meeting is one step of each worker. The workers gather their positions; the sender is not known before that, so
//! each worker has the nodes of both roles in the branches of a condition, and the sender's rank is part of the
//! instance keys. The values are assigned once all have arrived. Meetings have a separate graph key, so that the ids of
//! their steps are never those of a training step in progress.

use super::mark::TornMark;
use super::membership::Membership;
use super::{AllReduceJob, carrier, with_type};
use crate::error::Result;
use crate::variables::{Variable, Variables};
use client::Session;
use graph::builder::{Collective, CollectiveGroup};
use graph::{DType, NodeId, Output, PartialShape, Scope, Tensor};
use proto::pb;

/// The position of a worker whose variables have no values.
const NOWHERE: i64 = -1;
/// The position of a chief that cannot give its variables values.
const LOST: i64 = -2;
/// The position of a worker whose variables do not all have the values of one step.
const TORN: i64 = -3;
/// The time in seconds for which a meeting waits for workers that have joined the epoch.
const PATIENCE: f32 = 5.0;
/// The graph key of the meeting before the first epoch; the graph key computed for instance keys that are inputs is a
/// different number.
const GRAPH_KEY: i64 = 1;

/// The position of a worker in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    /// The global step of a worker whose variables all have values of that step.
    At(i64),
    /// The global step of a worker whose variables all have values, but not all of that step, because an update or a
    /// transfer was interrupted.
    Torn(i64),
    /// A worker some of whose variables have no values.
    Nowhere,
    /// A chief that can neither initialise nor restore the variables.
    Lost,
}

/// The outcome of a meeting of the workers of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meet {
    /// All workers have the values of the most advanced worker.
    Done,
    /// No worker has values of one step.
    NoValues,
    /// No worker has values of one step, and the chief cannot restore or initialise them; some workers' variables are
    /// torn.
    Torn,
    /// No worker has values, and the chief cannot restore or initialise them.
    Lost,
}

/// The nodes of a meeting.
#[derive(Clone, Debug)]
pub(super) struct Meeting {
    /// This worker's global step, or a negative number such as [`NOWHERE`] for its position: an `int64` scalar to be
    /// fed.
    position: Output,
    /// This worker's position among the workers of the epoch: an `int32` scalar to be fed.
    rank: Output,
    /// The positions of all workers, an `int64` vector.
    positions: Output,
    /// The node that ends when this worker's variables have the values of the most advanced worker.
    done: NodeId,
}

/// The transfer of all variables from one worker to the others.
struct Transfer<'a> {
    variables: &'a [Variable],
    mark: &'a TornMark,
    group: CollectiveGroup,
    /// The instance key of the first variable's transfer from rank 0.
    first: i32,
    workers: u32,
    /// The rank of the sender, a scalar `int32`.
    sender: Output,
    is_sender: Output,
}

impl Meeting {
    /// Adds the nodes of a meeting, which transfers all variables that exist now and of which each worker has a copy.
    ///
    /// # Errors
    /// `InvalidArgument` for a variable of a type that cannot be sent, and for more transfers than there are keys.
    pub(super) fn build(
        job: AllReduceJob,
        host: &Scope,
        variables: &Variables,
        group: CollectiveGroup,
        mark: &TornMark,
    ) -> graph::Result<Meeting> {
        let scope = host.name_scope("meeting");
        let all: Vec<Variable> =
            variables.all().into_iter().filter(|variable| !job.is_shared(host, variable)).collect();
        all.iter().try_for_each(check)?;
        let instances = all.len() as u64 * u64::from(job.workers);
        let instances = i32::try_from(instances).map_err(|_| {
            let text = format!("{} variables are too many for {} workers", all.len(), job.workers);
            graph::Error::invalid(format!(
                "Strategy::AllReduce: {text}, because they need {instances} instance keys"
            ))
        })?;
        let instance = scope.constant(variables.take_instances(1));
        let gather = Collective { timeout_seconds: PATIENCE, ..group.instance(instance) };
        let position = scope.placeholder("position", DType::Int64, PartialShape::scalar());
        let rank = scope.placeholder("rank", DType::Int32, PartialShape::scalar());
        let positions = scope.all_gather(scope.reshape(position, &[1]), gather);
        let sender = scope.cast(scope.argmax(positions, 0), DType::Int32);
        let most = scope.reduce_max(positions, &[0], false);
        let transfer = Transfer {
            group,
            first: variables.take_instances(instances),
            workers: job.workers,
            sender,
            is_sender: scope.equal(sender, rank),
            variables: &all,
            mark,
        };
        let has_sender = scope.greater(most, scope.constant(NOWHERE));
        let done = scope.cond(
            has_sender,
            |branch| vec![transfer.add(branch)],
            |branch| vec![branch.constant(false)],
        );
        let done = scope.group(&done.iter().map(|output| output.node).collect::<Vec<_>>());
        Ok(Meeting { position, rank, positions, done })
    }

    /// Runs the meeting of the epoch's workers, with the feeds of the epoch; see
    /// [`AllReduceReplica::meet`](super::AllReduceReplica::meet).
    pub(super) fn run(
        &self,
        session: &Session,
        position: Position,
        membership: &Membership,
        feeds: Vec<(Output, Tensor)>,
    ) -> Result<Meet> {
        let collective_graph_key = GRAPH_KEY + membership.epoch;
        let experimental = pb::run_options::Experimental { collective_graph_key, ..Default::default() };
        let options = pb::RunOptions { experimental: Some(experimental), ..Default::default() };
        let rank = i32::try_from(membership.rank).unwrap_or(i32::MAX);
        let meeting = session.step().feed(self.position, position.number()).feed(self.rank, rank);
        let meeting = feeds.into_iter().fold(meeting, |step, (output, value)| step.feed(output, value));
        let values = meeting.fetch(self.positions).target(self.done).options(options).run()?.values;
        let positions = values.first().map_or(Ok(Vec::new()), Tensor::to_i64s)?;
        Ok(Meet::of(&positions))
    }
}

impl Position {
    /// Returns the position of a worker when no other worker and no checkpoint has values of one step: torn variables
    /// count as variables of their global step, so that the job continues with them.
    pub(crate) fn in_want_of_others(self, worker: usize) -> Position {
        let Position::Torn(step) = self else { return self };
        tracing::warn!(
            "an update of worker {worker} was cut short, and no worker and no checkpoint has variables of one step: \
             training goes on from step {step}, some of whose variables already have the next update"
        );
        Position::At(step)
    }

    fn number(self) -> i64 {
        match self {
            Position::At(step) => step,
            Position::Torn(_) => TORN,
            Position::Nowhere => NOWHERE,
            Position::Lost => LOST,
        }
    }
}

impl Meet {
    fn of(positions: &[i64]) -> Meet {
        match positions {
            positions if positions.iter().any(|&position| position > NOWHERE) => Meet::Done,
            positions if !positions.contains(&LOST) => Meet::NoValues,
            positions if positions.contains(&TORN) => Meet::Torn,
            _ => Meet::Lost,
        }
    }
}

impl Transfer<'_> {
    /// Adds the nodes that give this worker the sender's values. Returns a `bool` that becomes available when all
    /// values are assigned.
    fn add(&self, scope: &Scope) -> Output {
        let values = scope.cond(self.is_sender, |branch| self.send(branch), |branch| self.receive(branch));
        let mut ready: Vec<NodeId> = values.iter().map(|value| value.node).collect();
        ready.push(self.begin(scope, &ready));
        let assign = |(variable, &value): (&Variable, &Output)| {
            let beside = scope.colocate_with(variable.handle.node).control(&ready);
            beside.assign_variable(variable.handle, with_type(&beside, value, variable.dtype))
        };
        let assigned: Vec<NodeId> = self.variables.iter().zip(&values).map(assign).collect();
        let ended = self.mark.clear(&scope.control(&assigned));
        scope.control(&[ended]).constant(true)
    }

    /// Adds the node that marks a receiver's variables as torn once all values have arrived. The variables of the
    /// sender keep their values and are not marked.
    fn begin(&self, scope: &Scope, arrived: &[NodeId]) -> NodeId {
        let tear = |branch: &Scope| {
            let torn = self.mark.set(&branch.control(arrived));
            vec![branch.control(&[torn]).constant(true)]
        };
        let begun = scope.cond(self.is_sender, |branch| vec![branch.constant(false)], tear);
        scope.group(&begun.iter().map(|output| output.node).collect::<Vec<_>>())
    }

    fn send(&self, scope: &Scope) -> Vec<Output> {
        let send = |(i, variable): (usize, &Variable)| {
            let beside = scope.colocate_with(variable.handle.node);
            let value = beside.read_variable(variable.handle, variable.dtype);
            scope.broadcast_send(with_type(scope, value, wire(variable)), self.instance(scope, i))
        };
        self.variables.iter().enumerate().map(send).collect()
    }

    fn receive(&self, scope: &Scope) -> Vec<Output> {
        let receive = |(i, variable): (usize, &Variable)| {
            let shape: Vec<i64> = variable.shape.dims().iter().map(|&dim| dim as i64).collect();
            let shape = scope.constant_vector(&shape);
            scope.broadcast_recv(wire(variable), shape, self.instance(scope, i))
        };
        self.variables.iter().enumerate().map(receive).collect()
    }

    /// Returns the collective that transfers the variable with index `i`.
    fn instance(&self, scope: &Scope, i: usize) -> Collective {
        let of_variable = scope.constant(self.first + i as i32 * self.workers as i32);
        self.group.instance(scope.add(of_variable, self.sender))
    }
}

/// Returns the type in which a variable's value is transferred.
fn wire(variable: &Variable) -> DType {
    match variable.dtype {
        DType::Bool => DType::Bool,
        dtype => carrier(dtype).unwrap_or(dtype),
    }
}

/// Checks that a variable can be sent.
fn check(variable: &Variable) -> graph::Result<()> {
    if variable.dtype == DType::Bool || carrier(variable.dtype).is_some() {
        return Ok(());
    }
    Err(graph::Error::invalid(format!(
        "variable '{}' is of {}, which Strategy::AllReduce does not send to workers that start later",
        variable.name, variable.dtype
    )))
}
