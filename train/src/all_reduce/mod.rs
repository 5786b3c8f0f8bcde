//! Training without parameter servers: every worker holds all variables on its own task. In each step it computes
//! gradients from its share of the data, combines them with those of the other workers by collectives, and applies the
//! result itself. All workers combine the same numbers in the same order, so their variables keep equal bits. Embedding
//! tables may be on parameter servers nevertheless ([`tables`]).
//!
//! All collectives of a job belong to one group. Their instance keys are numbered in the order of creation, which is
//! the same in the graphs of all workers.

mod input;
mod mark;
mod meeting;
mod membership;
mod reducer;
mod tables;

pub(crate) use input::OptionalBatch;
pub(crate) use meeting::{Meet, Position};
pub(crate) use membership::Attendance;
pub use membership::Membership;
pub use tables::Tables;

use crate::error::{Error, Result};
use crate::gradient::Gradient;
use crate::session::Coordinator;
use crate::training::UpdateRule;
use crate::variables::{Variable, Variables};
use client::Session;
use graph::{Bool8, DType, NodeId, Output, Scope, Tensor};
use mark::TornMark;
use meeting::Meeting;
use membership::AssemblyNodes;
use reducer::Reducer;
use std::sync::Arc;
use std::time::Duration;
use tables::{SharedParts, TableUpdate};

/// The key of the job's assembly. The keys of its epochs' groups are below it, far from the keys of programs, which
/// count from 1.
const JOB_KEY: i32 = i32::MAX;

/// The combination of the workers' gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Average {
    /// The sum of the workers' gradients divided by the number of present workers; with [`Uneven::Join`], by the number
    /// of workers that had a batch.
    #[default]
    Mean,
    /// The sum of the workers' gradients.
    Sum,
}

/// The type of gradients between workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wire {
    /// The gradient's own type.
    #[default]
    F32,
    /// `bfloat16` for gradients of `float` and `double`, which takes half of the bytes of `float`. Each worker's
    /// gradient and the result are rounded; sums are computed in `float`.
    Bf16,
}

/// The end of training where the workers' inputs have different lengths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Uneven {
    /// The step for which a worker has no batch fails with `OutOfRange` on all workers, without an update; so training
    /// ends with the shortest input.
    #[default]
    Fail,
    /// A worker whose input has ended continues with a weight of 0 until the inputs of all workers have ended. The mean
    /// is that of the workers that have a batch. The step's inputs must come from one [`Input`](crate::Input).
    Join,
}

/// A worker's place in an all-reduce job, and the job's rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllReduceJob {
    pub(crate) worker: u32,
    pub(crate) workers: u32,
    /// The smallest number of workers with which the job trains.
    pub(crate) least: u32,
    pub(crate) average: Average,
    pub(crate) wire: Wire,
    pub(crate) uneven: Uneven,
    /// The number of parameter servers that hold the tables; `None` if every worker has the tables.
    pub(crate) ps_tasks: Option<u32>,
}

/// The nodes of a worker of an all-reduce job by which it meets the other workers.
#[derive(Clone, Debug)]
pub struct AllReduceReplica {
    /// The index of this worker.
    pub worker: usize,
    /// The number of workers in the job.
    pub workers: usize,
    assembly: AssemblyNodes,
    meeting: Meeting,
    /// True if this worker's variables are torn, a scalar `bool`.
    is_torn: Output,
    shared: SharedParts,
    /// The nodes that run before and after a replacement of all values of the variables.
    replacement: Replacement,
    /// The number of workers that had a batch in the step, a scalar `float`; `None` if every worker must have a batch.
    total_weight: Option<Output>,
}

/// The nodes that run before and after a replacement of all values of a worker's variables and of the parts on parameter
/// servers.
#[derive(Clone, Debug)]
struct Replacement {
    begin: Vec<NodeId>,
    end: Vec<NodeId>,
}

impl AllReduceJob {
    /// Checks that this worker is one of the job's workers.
    pub(crate) fn check(self) -> graph::Result<()> {
        let AllReduceJob { worker, workers, least, ps_tasks, .. } = self;
        if workers == 0 || i32::try_from(workers).is_err() {
            return Err(graph::Error::invalid(format!(
                "Strategy::AllReduce has {workers} workers, not 1 to {}",
                i32::MAX
            )));
        }
        if worker >= workers {
            return Err(graph::Error::invalid(format!(
                "worker {worker} is none of the {workers} workers that reduce gradients together: they count from 0"
            )));
        }
        if !(1..=workers).contains(&least) {
            return Err(graph::Error::invalid(format!(
                "Strategy::AllReduce trains with at least {least} workers, not 1 to all {workers}"
            )));
        }
        if ps_tasks == Some(0) {
            return Err(graph::Error::invalid(
                "Strategy::AllReduce has tables on 0 parameter servers: use Tables::Replicated without any",
            ));
        }
        if ps_tasks.is_some() && least < workers {
            return Err(graph::Error::unimplemented(format!(
                "Strategy::AllReduce with tables on parameter servers needs all {workers} workers: set least to {workers}"
            )));
        }
        Ok(())
    }

    /// Adds the nodes of a training step: the gradients of all workers are combined, and the update is applied once all
    /// combined gradients have arrived. `has_batch` is false in a step for which this worker has no batch. Returns the
    /// node that trains.
    pub(crate) fn build(
        self,
        scope: &Scope,
        variables: &Variables,
        rule: &UpdateRule<'_>,
        gradients: &[(Variable, Gradient)],
        has_batch: Option<Output>,
    ) -> graph::Result<(NodeId, AllReduceReplica)> {
        let host = scope.device("/device:CPU:0");
        let assembly = AssemblyNodes::build(self, &host);
        let group = assembly.group;
        let combining = host.name_scope("all_reduce");
        let reducer = Reducer::new(self, &combining, variables, group, has_batch);
        let reduced = reducer.reduce(gradients)?;
        let arrived =
            scope.group(&reduced.iter().flat_map(|(_, gradient)| nodes_of(gradient)).collect::<Vec<_>>());
        let has_any = reducer.total_weight().map(|total| host.greater(total, host.constant(0.0f32)));
        let (of_tables, reduced): (Vec<_>, Vec<_>) =
            reduced.into_iter().partition(|(variable, _)| self.is_shared(scope, variable));
        let tables = TableUpdate { job: self, scope: &combining, variables, rule, arrived, has_any };
        let (shared, owned) = tables.build(&of_tables);
        let ready = if shared.is_empty() {
            arrived
        } else {
            reducer.wait_for_all(&[&[arrived], &owned[..]].concat())
        };
        let mark = TornMark::build(variables);
        let apply = |scope: &Scope| {
            let marked = mark.set(&scope.name_scope("update").control(&[ready]));
            let updated = rule.apply(&scope.control(&[marked]), variables, &reduced);
            mark.clear(&scope.control(&[updated]))
        };
        let train = match has_any {
            None => apply(scope),
            Some(has_any) => {
                let update = |branch: &Scope| {
                    let updated = apply(branch);
                    vec![branch.control(&[updated]).constant(true)]
                };
                let updated = scope.cond(has_any, update, |branch| vec![branch.constant(false)]);
                scope.group(&updated.iter().map(|output| output.node).collect::<Vec<_>>())
            }
        };
        let replica = AllReduceReplica {
            worker: self.worker as usize,
            workers: self.workers as usize,
            meeting: Meeting::build(self, &host, variables, group, &mark)?,
            assembly,
            is_torn: mark.is_torn,
            replacement: Replacement {
                begin: [&[mark.set(&host)], &shared.shut[..]].concat(),
                end: [&[mark.clear(&host)], &shared.open[..]].concat(),
            },
            shared,
            total_weight: reducer.total_weight(),
        };
        Ok((train, replica))
    }
}

impl AllReduceReplica {
    /// Waits until the workers that train together have opened their sessions. `can_give` is true if this worker has
    /// values of the variables, or is the chief and can initialise or restore them.
    ///
    /// # Errors
    /// `WorkersMissing` after the deadline, and errors that a new session may fix.
    pub(crate) fn assemble(
        &self,
        attendance: &Attendance,
        place: (&Arc<Session>, &Coordinator),
        can_give: bool,
        deadline: Duration,
    ) -> Result<Membership> {
        let missing = |waited, cause| self.missing("open their sessions", waited, cause);
        attendance.join(&self.assembly, place, (self.worker, can_give), deadline, missing)
    }

    /// Ends this worker's training after its last step: waits until the other workers of the epoch have ended theirs, at most
    /// for `grace`.
    pub(crate) fn finish(&self, attendance: &Attendance, session: &Session, last_step: i64, grace: Duration) {
        attendance.finish(&self.assembly, session, (self.worker, last_step), grace);
    }

    /// Meets the other workers of the epoch, and gives all of them the variables of the most advanced worker.
    ///
    /// # Errors
    /// Those of the session; `DeadlineExceeded` if workers are missing after some seconds.
    pub(crate) fn meet(&self, session: &Session, position: Position, found: &Membership) -> Result<Meet> {
        self.meeting.run(session, position, found, self.assembly.feeds(found))
    }

    /// Returns the position of this worker, whose variables all have values.
    pub(crate) fn position(&self, session: &Session, step: i64) -> Result<Position> {
        let is_torn = session.run(&[], &[self.is_torn], &[])?;
        let is_torn = is_torn.first().map_or(Ok(false), |torn| torn.item::<Bool8>().map(Bool8::get))?;
        Ok(if is_torn { Position::Torn(step) } else { Position::At(step) })
    }

    /// Gives all variables of this replica and all parts on parameter servers new values by `assign`. If that fails
    /// midway, this replica's variables are torn, and the parts have no counts, so that no worker treats their values
    /// as those of a step.
    pub(crate) fn replace_values(
        &self,
        session: &Session,
        assign: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        session.run(&[], &[], &self.replacement.begin)?;
        assign()?;
        session.run(&[], &[], &self.replacement.end)?;
        Ok(())
    }

    /// Returns the feeds that a step of an epoch needs.
    pub(crate) fn feeds(&self, membership: &Membership) -> Vec<(Output, Tensor)> {
        self.assembly.feeds(membership)
    }

    /// Returns the error of a wait for the other workers, in which they have not done `what` in time.
    pub(crate) fn missing(&self, what: &'static str, waited: Duration, cause: Error) -> Error {
        let AllReduceReplica { worker, workers, .. } = *self;
        Error::WorkersMissing { worker, workers, what, waited, cause: Box::new(cause) }
    }

    /// Returns the fetches that show, after a step, whether any worker had a batch.
    pub(crate) fn fetches(&self) -> Vec<Output> {
        self.total_weight.into_iter().collect()
    }

    /// Checks the values of [`AllReduceReplica::fetches`] after a step.
    ///
    /// # Errors
    /// `InputsEnded` if no worker had a batch: the step has updated no variable.
    pub(crate) fn check(&self, values: &[Tensor]) -> Result<()> {
        match values.first().map(Tensor::item::<f32>).transpose()? {
            Some(0.0) => Err(Error::InputsEnded { workers: self.workers }),
            _ => Ok(()),
        }
    }
}

/// Returns the nodes of a gradient.
fn nodes_of(gradient: &Gradient) -> Vec<NodeId> {
    match gradient {
        Gradient::Dense(gradient) => vec![gradient.node],
        Gradient::Sparse { indices, values } => vec![indices.node, values.node],
    }
}

/// Returns the type with the same number of bits that collectives transfer in place of `dtype`; `None` if there is
/// none.
fn carrier(dtype: DType) -> Option<DType> {
    match dtype {
        DType::Float | DType::Half | DType::Double | DType::Int32 | DType::Int64 => Some(dtype),
        DType::BFloat16 | DType::Int16 | DType::UInt16 => Some(DType::Half),
        DType::UInt32 => Some(DType::Int32),
        DType::UInt64 | DType::Complex64 => Some(DType::Int64),
        _ => None,
    }
}

/// Returns the bits of `x` as another type of the same size.
fn with_type(scope: &Scope, x: Output, dtype: DType) -> Output {
    if scope.dtype(x) == dtype { x } else { scope.bitcast(x, dtype) }
}
