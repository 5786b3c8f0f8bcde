//! Process groups: processes that exchange tensors by collectives and messages, without a graph.

mod driver;
mod environment;
mod meeting;
mod process;
mod work;

pub use environment::{Environment, EnvironmentError, LaunchedTask};
pub use work::Work;

use self::process::Process;
use self::work::{Waits, after};
use crate::error::Result;
use graph::fingerprint::{combine, hash64};
use graph::{DType, DeviceAttributes, Shape, TaskName, Tensor};
use proto::{Cluster, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpSocket;
use worker::{Group, GroupCall, GroupCallId, Operation, Reduction, Transport};

/// The mask of the 57 bits of a step id.
const ID_MASK: u64 = (1 << 57) - 1;

/// The job name of the processes that a launcher has started.
const JOB: &str = "worker";

/// The time limits and the transports of a process group.
#[derive(Clone, Debug)]
pub struct GroupOptions {
    /// The time within which a call must end on this member, even if no thread waits for its result.
    pub timeout: Duration,
    /// The time within which all members of a group must have joined it.
    pub join_timeout: Duration,
    /// The transports that tensors may take between the members.
    pub transport: Transport,
}

impl Default for GroupOptions {
    /// Returns the default options, with time limits of two minutes for a call and one minute for joining.
    fn default() -> GroupOptions {
        GroupOptions {
            timeout: Duration::from_secs(120),
            join_timeout: Duration::from_secs(60),
            transport: Transport::default(),
        }
    }
}

/// One process's membership in a group of processes, like a group of `torch.distributed`. Members have ranks, counted
/// from 0.
///
/// All members must start the same collectives in the same order. If members disagree in the operation, root,
/// reduction, type or shape of a call, it fails on all members with an error that shows two of the descriptions, and
/// the next call works again. A member on which the call had already succeeded gets the error from its next call, which
/// then fails on all members.
///
/// Reductions combine elements in the order of the ranks, so that all members, and two runs, get the same bits. In a
/// tensor that contains elements for each member, or from each member, the first index is the rank.
///
/// Dropping a group leaves it; calls of the other members that need this member then fail.
#[derive(Debug)]
pub struct ProcessGroup {
    group: Arc<Group>,
    process: Arc<Process>,
    name: String,
    options: GroupOptions,
    waits: Arc<Waits>,
}

impl ProcessGroup {
    /// Joins the group of all tasks of a cluster with one job, in which rank *r* is task *r*, and waits until all
    /// members have joined. The process listens at the address of its task.
    ///
    /// # Errors
    /// `InvalidArgument` for a cluster with several jobs or missing tasks, or without the rank; `Unavailable` and
    /// `DeadlineExceeded`, naming the missing members.
    pub fn join(cluster: Cluster, rank: usize, options: GroupOptions) -> Result<ProcessGroup> {
        let tasks = ranks_of(&cluster)?;
        let task = task_of(&tasks, rank)?;
        let socket = process::bind(task, cluster.address(task).unwrap_or_default())?;
        ProcessGroup::join_at(socket, cluster, rank, options)
    }

    /// Joins the group of the processes that a launcher has started: torchrun, `mpirun` of Open MPI or MPICH, or
    /// Slurm's `srun`, with default options. See [`Environment`] for the variables.
    ///
    /// # Errors
    /// `InvalidArgument` for missing or malformed variables, and those of [`ProcessGroup::join`].
    pub fn from_env() -> Result<ProcessGroup> {
        let environment = Environment::read(|name| std::env::var(name).ok());
        let environment = environment.map_err(|e| Status::invalid(e.to_string()))?;
        ProcessGroup::from_environment(&environment, GroupOptions::default())
    }

    /// Joins the group of the processes with the given environment, like [`ProcessGroup::from_env`].
    ///
    /// # Errors
    /// Those of [`ProcessGroup::join`].
    pub fn from_environment(environment: &Environment, options: GroupOptions) -> Result<ProcessGroup> {
        let LaunchedTask { cluster, socket, .. } = environment.meet(options.join_timeout)?;
        ProcessGroup::join_at(socket, cluster, environment.rank, options)
    }

    fn join_at(
        socket: TcpSocket,
        cluster: Cluster,
        rank: usize,
        options: GroupOptions,
    ) -> Result<ProcessGroup> {
        let tasks = ranks_of(&cluster)?;
        let task = task_of(&tasks, rank)?.clone();
        let process = Process::start(cluster, task, socket, options.transport)?;
        let (worker, deadline) = (process.worker().clone(), after(Instant::now(), options.join_timeout));
        let members = process.wait(async move { worker.meet(&tasks, deadline).await })?;
        ProcessGroup::of_members(&process, members, "world".into(), options, deadline)
    }

    /// Joins a group of these members, and waits for the other members.
    fn of_members(
        process: &Arc<Process>,
        members: Vec<DeviceAttributes>,
        name: String,
        options: GroupOptions,
        deadline: Instant,
    ) -> Result<ProcessGroup> {
        let incarnations: Vec<u64> = members.iter().map(|member| member.incarnation).collect();
        let earlier = process.count_group(&incarnations);
        let bytes: Vec<u8> = incarnations.iter().flat_map(|incarnation| incarnation.to_le_bytes()).collect();
        let id = combine(hash64(&bytes), hash64(&earlier.to_le_bytes())) & ID_MASK;
        let group = Group::join(process.worker(), id as i64, &name, members, options.timeout)?;
        let waits = Waits::new(process.driver());
        let group = ProcessGroup { group, process: process.clone(), name, options, waits };
        group.start_barrier().wait_until(deadline)?;
        Ok(group)
    }

    /// Returns this member's rank.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// Returns the number of members.
    pub fn size(&self) -> usize {
        self.group.members().len()
    }

    /// Returns the task of each member, by rank.
    pub fn tasks(&self) -> Vec<TaskName> {
        self.group.members().iter().map(|member| member.name.task_name()).collect()
    }

    /// Makes a group of some members of this one, which get new ranks in the order of their ranks here. Its members
    /// must all call this function with the same ranks, and wait for each other; other members may call it too, and get
    /// `None`. The call succeeds even if members that are not in the new group are lost.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that occurs twice in the list or that this group does not have; `Unavailable` and
    /// `DeadlineExceeded`, naming the missing members.
    pub fn new_group(&self, ranks: &[usize]) -> Result<Option<ProcessGroup>> {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        if sorted.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Status::invalid(format!("the ranks of a new group are {ranks:?}")).into());
        }
        let member = |rank: &usize| {
            let member = self.group.members().get(*rank).cloned();
            member.ok_or_else(|| {
                Status::invalid(format!("rank {rank} is no member of the group '{}'", self.name))
            })
        };
        let members = sorted.iter().map(member).collect::<Result<Vec<_>, Status>>()?;
        if !sorted.contains(&self.rank()) {
            return Ok(None);
        }
        let name = format!("ranks {sorted:?} of {}", self.name);
        let deadline = after(Instant::now(), self.options.join_timeout);
        ProcessGroup::of_members(&self.process, members, name, self.options.clone(), deadline).map(Some)
    }

    /// Returns the combination of all members' tensors.
    ///
    /// # Errors
    /// `Unimplemented` for a type other than the floats, `int32` and `int64`; otherwise those of [`Work::wait`], like
    /// all calls.
    pub fn all_reduce(&self, tensor: Tensor, reduction: Reduction) -> Result<Tensor> {
        self.start_all_reduce(tensor, reduction).wait()
    }

    /// Starts [`ProcessGroup::all_reduce`].
    pub fn start_all_reduce(&self, tensor: Tensor, reduction: Reduction) -> Work<Tensor> {
        let output = tensor.shape().clone();
        self.start("all_reduce", Operation::Reduce(reduction), tensor, output, None, |output| output)
    }

    /// Returns the combination of all members' tensors on the root, `None` on the other members.
    pub fn reduce(&self, tensor: Tensor, reduction: Reduction, root: usize) -> Result<Option<Tensor>> {
        self.start_reduce(tensor, reduction, root).wait()
    }

    /// Starts [`ProcessGroup::reduce`].
    pub fn start_reduce(&self, tensor: Tensor, reduction: Reduction, root: usize) -> Work<Option<Tensor>> {
        let (output, is_root) = (tensor.shape().clone(), root == self.rank());
        let operation = Operation::ReduceToRoot { reduction, is_root };
        self.start("reduce", operation, tensor, output, Some(root), move |output| is_root.then_some(output))
    }

    /// Returns the root's tensor. The tensors of the other members only give the type and shape.
    pub fn broadcast(&self, tensor: Tensor, root: usize) -> Result<Tensor> {
        self.start_broadcast(tensor, root).wait()
    }

    /// Starts [`ProcessGroup::broadcast`].
    pub fn start_broadcast(&self, tensor: Tensor, root: usize) -> Work<Tensor> {
        let operation = Operation::Broadcast { is_source: root == self.rank() };
        let output = tensor.shape().clone();
        self.start("broadcast", operation, tensor, output, Some(root), |output| output)
    }

    /// Returns all members' tensors, stacked in the order of the ranks.
    pub fn all_gather(&self, tensor: Tensor) -> Result<Tensor> {
        self.start_all_gather(tensor).wait()
    }

    /// Starts [`ProcessGroup::all_gather`].
    pub fn start_all_gather(&self, tensor: Tensor) -> Work<Tensor> {
        match stacked(self.size(), tensor.shape()) {
            Ok(output) => self.start("all_gather", Operation::Gather, tensor, output, None, |output| output),
            Err(status) => Work::failed(&self.waits, status),
        }
    }

    /// Returns all members' tensors, stacked in the order of the ranks, on the root; `None` on the other members.
    pub fn gather(&self, tensor: Tensor, root: usize) -> Result<Option<Tensor>> {
        self.start_gather(tensor, root).wait()
    }

    /// Starts [`ProcessGroup::gather`].
    pub fn start_gather(&self, tensor: Tensor, root: usize) -> Work<Option<Tensor>> {
        let is_root = root == self.rank();
        let output = match stacked(if is_root { self.size() } else { 0 }, tensor.shape()) {
            Ok(output) => output,
            Err(status) => return Work::failed(&self.waits, status),
        };
        let operation = Operation::GatherToRoot { is_root };
        self.start("gather", operation, tensor, output, Some(root), move |output| is_root.then_some(output))
    }

    /// Returns row *r* of the root's tensor on rank *r*. The root passes a tensor whose first dimension is the number
    /// of members, the other members pass `None`; all members pass the type and shape of a row.
    pub fn scatter(
        &self,
        tensor: Option<Tensor>,
        (dtype, shape): (DType, &Shape),
        root: usize,
    ) -> Result<Tensor> {
        self.start_scatter(tensor, (dtype, shape), root).wait()
    }

    /// Starts [`ProcessGroup::scatter`].
    pub fn start_scatter(
        &self,
        tensor: Option<Tensor>,
        (dtype, shape): (DType, &Shape),
        root: usize,
    ) -> Work<Tensor> {
        let is_root = root == self.rank();
        let call = GroupCall {
            name: "scatter",
            operation: Operation::Scatter { is_root },
            dtype,
            input: tensor.filter(|_| is_root),
            output: shape.clone(),
            agreed: Some(shape.clone()),
            root: Some(root),
        };
        self.start_call(call, |output| output)
    }

    /// Returns row *r* of the combination of all members' tensors on rank *r*. Their first dimension is the number of
    /// members.
    pub fn reduce_scatter(&self, tensor: Tensor, reduction: Reduction) -> Result<Tensor> {
        self.start_reduce_scatter(tensor, reduction).wait()
    }

    /// Starts [`ProcessGroup::reduce_scatter`].
    pub fn start_reduce_scatter(&self, tensor: Tensor, reduction: Reduction) -> Work<Tensor> {
        match Shape::new(tensor.shape().dims().get(1..).unwrap_or_default()) {
            Ok(output) => {
                let operation = Operation::ReduceScatter(reduction);
                self.start("reduce_scatter", operation, tensor, output, None, |output| output)
            }
            Err(error) => Work::failed(&self.waits, error.into()),
        }
    }

    /// Returns, on rank *r*, row *r* of every member's tensor, in the order of the ranks. The first dimension of the
    /// tensors is the number of members.
    pub fn all_to_all(&self, tensor: Tensor) -> Result<Tensor> {
        self.start_all_to_all(tensor).wait()
    }

    /// Starts [`ProcessGroup::all_to_all`].
    pub fn start_all_to_all(&self, tensor: Tensor) -> Work<Tensor> {
        let output = tensor.shape().clone();
        self.start("all_to_all", Operation::AllToAll, tensor, output, None, |output| output)
    }

    /// Waits until all members have called this function.
    pub fn barrier(&self) -> Result<()> {
        self.start_barrier().wait()
    }

    /// Starts [`ProcessGroup::barrier`].
    pub fn start_barrier(&self) -> Work<()> {
        let call = GroupCall {
            name: "barrier",
            operation: Operation::Reduce(Reduction::SUM),
            dtype: DType::Int32,
            input: Some(Tensor::from(0i32)),
            output: Shape::scalar(),
            agreed: None,
            root: None,
        };
        self.start_call(call, drop)
    }

    /// Sends a tensor of any type and shape to another member, which receives the tensors of one sender in the order of
    /// sending. Returns when the tensor is on its way. The tensor is sent at once, unless 64 MiB are in flight to the
    /// receiver; then the call waits. A larger tensor is sent when no other is in flight.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that is not another member's; `Unavailable` if the member is lost or has left;
    /// `DeadlineExceeded`, naming the member, if the tensor was not sent within the group's timeout.
    pub fn send(&self, tensor: Tensor, to: usize) -> Result<()> {
        self.start_send(tensor, to).wait()
    }

    /// Starts [`ProcessGroup::send`].
    pub fn start_send(&self, tensor: Tensor, to: usize) -> Work<()> {
        self.begin(drop, |finish| self.group.send(to, tensor, finish))
    }

    /// Receives the next tensor that another member sends.
    ///
    /// # Errors
    /// `InvalidArgument` for a rank that is not another member's, and those of [`Work::wait`].
    pub fn recv(&self, from: usize) -> Result<Tensor> {
        self.start_recv(from).wait()
    }

    /// Starts [`ProcessGroup::recv`].
    pub fn start_recv(&self, from: usize) -> Work<Tensor> {
        self.begin(|tensor| tensor, |finish| self.group.receive(from, finish))
    }

    fn start<T: Send + 'static>(
        &self,
        name: &'static str,
        operation: Operation,
        tensor: Tensor,
        output: Shape,
        root: Option<usize>,
        convert: impl FnOnce(Tensor) -> T + Send + 'static,
    ) -> Work<T> {
        let (dtype, agreed) = (tensor.dtype(), Some(tensor.shape().clone()));
        let has_input = operation != Operation::Broadcast { is_source: false };
        let input = Some(tensor).filter(|_| has_input);
        self.start_call(GroupCall { name, operation, dtype, input, output, agreed, root }, convert)
    }

    fn start_call<T: Send + 'static>(
        &self,
        call: GroupCall,
        convert: impl FnOnce(Tensor) -> T + Send + 'static,
    ) -> Work<T> {
        self.begin(convert, |finish| Ok(self.group.start(call, finish)))
    }

    fn begin<T: Send + 'static>(
        &self,
        convert: impl FnOnce(Tensor) -> T + Send + 'static,
        start: impl FnOnce(worker::GroupFinish) -> Result<GroupCallId, Status>,
    ) -> Work<T> {
        Work::start(&self.group, self.options.timeout, &self.waits, convert, start)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.group.leave();
    }
}

/// Returns the tasks of a cluster with one job, whose indices count up from 0.
fn ranks_of(cluster: &Cluster) -> Result<Vec<TaskName>, Status> {
    let tasks: Vec<TaskName> = cluster.tasks().map(|(task, _)| task).collect();
    let is_counted = tasks.iter().zip(0..).all(|(task, rank)| task.task == rank);
    if cluster.jobs().count() != 1 || !is_counted {
        let text = "the cluster of a process group has one job, whose tasks are the ranks from 0 on";
        return Err(Status::invalid(text));
    }
    Ok(tasks)
}

fn task_of(tasks: &[TaskName], rank: usize) -> Result<&TaskName, Status> {
    let unknown = || Status::invalid(format!("rank {rank} is no task of a cluster of {} tasks", tasks.len()));
    tasks.get(rank).ok_or_else(unknown)
}

/// Returns the shape of `size` stacked tensors.
fn stacked(size: usize, shape: &Shape) -> Result<Shape, Status> {
    let dims: Vec<usize> = std::iter::once(size).chain(shape.dims().iter().copied()).collect();
    Ok(Shape::new(&dims)?)
}
