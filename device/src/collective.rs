//! Collectives: operations in which the devices of a group, in one task or several, take part together. A kernel passes
//! a [`Request`] to the step's [`Collectives`], which the worker implements.

use crate::activity::Activity;
use crate::cancel::Cancellation;
use crate::device::{Device, DeviceTensor};
use crate::error::Result;
use crate::kernel::LoopPosition;
use crate::rendezvous::Rendezvous;
use crate::value::Value;
use graph::{BucketPlace, DType, Node, ReductionPlace, Shape, Tensor};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The function that combines the members' elements at the same position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Merge {
    Add,
    Mul,
    Min,
    Max,
}

impl Merge {
    /// Returns the function that an attribute of an op names.
    pub fn parse(name: &str) -> Merge {
        match name {
            "Add" => Merge::Add,
            "Mul" => Merge::Mul,
            "Min" => Merge::Min,
            _ => Merge::Max,
        }
    }

    /// Returns the name of the function in attributes of ops.
    pub fn name(self) -> &'static str {
        match self {
            Merge::Add => "Add",
            Merge::Mul => "Mul",
            Merge::Min => "Min",
            Merge::Max => "Max",
        }
    }
}

/// A reduction: the function that combines the members' elements, and whether the result is divided by the number of
/// members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    pub merge: Merge,
    pub is_mean: bool,
}

impl Reduction {
    pub const SUM: Reduction = Reduction { merge: Merge::Add, is_mean: false };
    pub const MEAN: Reduction = Reduction { merge: Merge::Add, is_mean: true };
    pub const PRODUCT: Reduction = Reduction { merge: Merge::Mul, is_mean: false };
    pub const MIN: Reduction = Reduction { merge: Merge::Min, is_mean: false };
    pub const MAX: Reduction = Reduction { merge: Merge::Max, is_mean: false };
}

/// The operation that the members of a group carry out together. "Rank" is a member's position in the order of the full
/// device names, or in its row of the group assignment of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Every member gets the combination of all inputs.
    Reduce(Reduction),
    /// Member *r* gets the rows of the combination that begin at *r* times the number of rows divided by the group's
    /// size.
    ReduceScatter(Reduction),
    /// Every member gets all inputs, concatenated along the first dimension in the order of the ranks.
    Gather,
    /// Every member gets the input of one member, the source.
    Broadcast { is_source: bool },
    /// Member *r* gets row *r* of every member's input, in the order of the ranks.
    AllToAll,
    /// The members wait until the group is complete, and exchange nothing.
    Join,
    /// One member, the root, gets the combination of all inputs; the outputs of the others are unspecified.
    ReduceToRoot { reduction: Reduction, is_root: bool },
    /// The root gets all inputs, concatenated along the first dimension in the order of the ranks.
    GatherToRoot { is_root: bool },
    /// Member *r* gets row *r* of the root's input.
    Scatter { is_root: bool },
}

/// A member's place in the group of a communicator, whose members choose their own ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The member's rank in the whole group.
    pub rank: u32,
    /// The subgroups that carry out the operation separately, each as the ranks of its members, in order. Every rank of
    /// the group is in one subgroup. Empty if the whole group carries out the operation, in the order of the ranks.
    pub assignment: Arc<[Vec<u32>]>,
}

impl Placed {
    /// Returns the subgroup to which the member belongs; `None` for the whole group.
    pub fn subgroup(&self) -> Option<&[u32]> {
        self.assignment.iter().find(|ranks| ranks.contains(&self.rank)).map(Vec::as_slice)
    }
}

/// One member's request to take part in a collective. The members of a group are the devices that request the same
/// `group_key`; requests with equal `instance_key` belong to one collective.
#[derive(Clone, Debug)]
pub struct Request {
    pub node: Arc<Node>,
    pub device: Arc<Device>,
    pub operation: Operation,
    pub dtype: DType,
    /// The shape of the member's output.
    pub shape: Shape,
    /// The member's input; `None` for a receiver of a broadcast, and for an input in device memory.
    pub input: Option<Tensor>,
    /// The input of a reduction that is in the memory of the member's device.
    pub on_device: Option<DeviceInput>,
    /// Number of members of the group, at least 1.
    pub group_size: u32,
    pub group_key: i32,
    pub instance_key: i32,
    /// The member's place in the group of a communicator; `None` if the keys are those of a group whose members are
    /// ranked by their names. A communicator and another group may have the same key.
    pub placed: Option<Placed>,
    /// The node's place in a bucket; `None` if it is in none.
    pub bucket: Option<BucketPlace>,
    /// The iteration of the loop in which the node runs; each iteration is a collective of its own.
    pub position: LoopPosition,
    /// The time within which the collective must end; `None` for the server's default.
    pub timeout: Option<Duration>,
}

/// A member's input in the memory of its device.
#[derive(Clone, Debug)]
pub struct DeviceInput {
    pub tensor: DeviceTensor,
    /// The node's place in the order of its device's reductions; `None` if the device's library cannot carry the
    /// reduction out, because it has no place in the order.
    pub place: Option<ReductionPlace>,
    /// The program's choice of how the reduction is carried out.
    pub hint: DeviceHint,
}

/// A program's choice of how tensors in device memory are reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceHint {
    /// By the device's library if all members can use it, else through host memory.
    Auto,
    /// Always through host memory.
    Host,
    /// By the device's library; the reduction fails if a member cannot use it.
    Library,
}

impl DeviceHint {
    /// Returns the choice that the attribute `communication_hint` of an op names.
    pub fn parse(hint: &str) -> DeviceHint {
        match hint {
            "ring" => DeviceHint::Host,
            "nccl" => DeviceHint::Library,
            _ => DeviceHint::Auto,
        }
    }
}

impl Request {
    /// Returns the digest of the node's bucket, or of the order of its device's reductions: members with equal digests
    /// can run the instance together with the other instances of that bucket or order.
    pub fn digest(&self) -> Option<i64> {
        let place = self.on_device.as_ref().and_then(|input| input.place);
        self.bucket.map(|bucket| bucket.digest).or(place.map(|place| place.digest))
    }

    /// Returns whether the member is the source of a broadcast.
    pub fn is_source(&self) -> bool {
        self.operation == Operation::Broadcast { is_source: true }
    }
}

/// A worker's call to the assembly of a job whose workers may join and leave during training. The leader numbers the
/// epochs of the job; the workers of an epoch train together.
#[derive(Clone, Debug)]
pub struct AssemblyCall {
    pub node: Arc<Node>,
    /// The key of the job's assembly at the leader.
    pub job_key: i32,
    /// The index of the worker in the job.
    pub worker: u32,
    /// The last epoch that the worker has been in, or 0.
    pub epoch: i64,
    pub purpose: AssemblyPurpose,
    /// The time after which the leader answers even if the awaited event has not happened.
    pub patience: Duration,
}

/// The kind of a call to a job's assembly, which determines its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AssemblyPurpose {
    /// Waits for the next epoch, which begins with `least` to `most` workers. The answer is its number, then the
    /// indices of its workers in ascending order. `has_values` is true if the worker's variables have values: an epoch
    /// of fewer than `most` workers needs a worker with values.
    Join { least: u32, most: u32, has_values: bool },
    /// Waits until the change of the worker's epoch is greater than `known`, at most for the call's patience. The
    /// answer is the number of the [`AssemblyChange`], then the least of the last steps of the workers that have
    /// finished, or -1.
    Watch { known: i64 },
    /// Reports the end of the worker's training after `step`. The answer comes when all workers of the epoch have
    /// finished or left, and some seconds after one has left for the next epoch. It consists of the indices of the
    /// workers that are still training.
    Finish { step: i64 },
}

/// The reasons why an epoch must end, in ascending order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i64)]
pub enum AssemblyChange {
    /// No worker waits for the next epoch.
    None = 0,
    /// A worker that is not in the epoch waits for the next one.
    Newcomer = 1,
    /// A worker of the epoch has ended its training, so that no step after its last one can end.
    Finished = 2,
    /// A worker of the epoch has left it and waits for the next one, so that no step of the epoch can end.
    Left = 3,
    /// The leader does not count the worker among those of the epoch.
    Over = 4,
}

/// A callback that receives a member's output: in host memory, or in device memory if the input is there and the
/// device's library has computed the output. It is called exactly once.
pub type Finish = Box<dyn FnOnce(Result<Value>) + Send>;

/// The access of a step's nodes, including those in functions, to the server's collectives.
#[derive(Clone, Debug)]
pub struct StepCollectives {
    pub collectives: Arc<dyn Collectives>,
    /// The step's id.
    pub id: i64,
    /// The step's own rendezvous; a function call has another.
    pub rendezvous: Arc<dyn Rendezvous>,
    /// The step's own cancellation; a function call has another.
    pub cancellation: Arc<Cancellation>,
    /// The running kernels of the step.
    pub activity: Arc<Activity>,
}

/// The collectives of a server, which the worker implements.
pub trait Collectives: Send + Sync + fmt::Debug {
    /// Takes part in a collective over the rendezvous of `step`, and calls `finish` when the member's output is complete,
    /// or the collective has failed.
    fn start(&self, step: &StepCollectives, request: Request, finish: Finish);

    /// Calls the assembly of a job, and calls `finish` with its answer, a vector of `int64`, or with `DeadlineExceeded` and
    /// the workers that are missing.
    fn assemble(&self, step: &StepCollectives, call: AssemblyCall, finish: Finish);
}
