//! Communicators: groups whose members give their ranks, and the reductions and exchanges within parts of such a group.

use super::{Form, group_size, reply, start, timeout};
use crate::objects::step_object::{resource_handle, unique_name};
use device::Result;
use device::collective::{Merge, Operation, Placed, Reduction, Request};
use device::handle::single_handle;
use device::kernel::{AsyncContext, Kernel, KernelInit};
use device::resource::Resource;
use graph::passes::INSTANCE_NUMBER;
use graph::{DType, Shape};
use smallvec::smallvec;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// A member's access to its group, which lives as long as the step.
#[derive(Debug)]
struct Communicator {
    group_key: i32,
    group_size: u32,
    rank: u32,
    timeout: Option<Duration>,
    /// The instance key of the next node that has no instance number. These keys are negative, and descend from node to
    /// node.
    next_instance: AtomicI32,
}

impl Resource for Communicator {
    const KIND: &'static str = "Communicator";
}

/// Creates the kernel of CollectiveInitializeCommunicator, which waits until the group is complete.
pub(super) fn initialize(init: &KernelInit<'_>) -> Result<Kernel> {
    let timeout = timeout(init)?;
    Kernel::asynchronous(move |ctx| {
        let communicator = match Communicator::of_inputs(&ctx, timeout) {
            Ok(communicator) => communicator,
            Err(error) => return ctx.done(Err(error)),
        };
        let placed = communicator.placed(Arc::from([]));
        let request = communicator.request(&ctx, Operation::Join, 0, placed);
        let AsyncContext { node, device, step, done, .. } = ctx;
        let of_step = step.clone();
        start(&step, request, move |joined| {
            let handle = joined.and_then(|_| {
                let name = unique_name(&node.name);
                of_step.resources.lookup_or_create("", &name, || Ok(communicator))?;
                Ok(smallvec![resource_handle::<Communicator>(&device, "", &name)])
            });
            done(handle);
        });
    })
}

/// Creates the kernel of CollectiveReduceV3.
pub(super) fn reduce(init: &KernelInit<'_>) -> Result<Kernel> {
    let merge = Merge::parse(&init.attr::<String>("reduction")?);
    kernel(init, Operation::Reduce(Reduction { merge, is_mean: false }), Form::Same)
}

/// Creates the kernel of CollectiveAllToAllV3.
pub(super) fn all_to_all(init: &KernelInit<'_>) -> Result<Kernel> {
    kernel(init, Operation::AllToAll, Form::Rows)
}

fn kernel(init: &KernelInit<'_>, operation: Operation, form: Form) -> Result<Kernel> {
    let (dtype, timeout) = (init.output_type(0), timeout(init)?);
    let number = init.node.attrs.get(INSTANCE_NUMBER).is_some().then(|| init.attr::<i64>(INSTANCE_NUMBER));
    let number = number.transpose()?.map(|number| number as i32);
    Kernel::asynchronous(move |ctx| match request(&ctx, operation, number, &form, dtype, timeout) {
        Err(error) => ctx.done(Err(error)),
        Ok(request) => {
            let AsyncContext { step, done, .. } = ctx;
            start(&step, request, reply(done));
        }
    })
}

/// Returns the request of a node whose inputs are the data, the communicator and the assignment.
fn request(
    ctx: &AsyncContext,
    operation: Operation,
    number: Option<i32>,
    form: &Form,
    dtype: DType,
    timeout: Option<Duration>,
) -> Result<Request> {
    let communicator = find(ctx)?;
    let assignment = assignment(ctx, communicator.group_size)?;
    let placed = communicator.placed(assignment);
    let members = placed.subgroup().map_or(communicator.group_size, |ranks| ranks.len() as u32);
    let instance_key = number.unwrap_or_else(|| communicator.next_instance.fetch_sub(1, Ordering::Relaxed));
    Ok(Request {
        dtype,
        shape: form.shape(ctx, members)?,
        input: Some(ctx.input(0)?.clone()),
        timeout,
        ..communicator.request(ctx, operation, instance_key, placed)
    })
}

/// Returns the communicator that input 1 refers to.
fn find(ctx: &AsyncContext) -> Result<Arc<Communicator>> {
    let handle = single_handle(ctx.input(1)?)?;
    let own = ctx.device.name().to_string();
    if *handle.device != *own {
        device::invalid!("the communicator was initialized on {}, its member is not {own}", handle.device);
    }
    ctx.step.resources.lookup(&handle.container, &handle.name)
}

/// Returns the subgroups that input 2 lists, one in each row of a matrix; an empty list if the input is empty, or if
/// one row lists all ranks in ascending order.
///
/// # Errors
/// `InvalidArgument` unless every rank is in one row.
fn assignment(ctx: &AsyncContext, group_size: u32) -> Result<Arc<[Vec<u32>]>> {
    let tensor = ctx.input(2)?;
    if tensor.num_elements() == 0 {
        return Ok(Arc::from([]));
    }
    let &[rows, columns] = tensor.shape().dims() else {
        device::invalid!("group_assignment must be a matrix, got shape {}", tensor.shape());
    };
    let ranks = tensor.values::<i32>()?;
    check_assignment(ranks, group_size)?;
    if rows == 1 && ranks.is_sorted() {
        return Ok(Arc::from([]));
    }
    Ok(ranks.chunks_exact(columns).map(|row| row.iter().map(|&rank| rank as u32).collect()).collect())
}

/// Checks that every rank of a group is listed once.
fn check_assignment(ranks: &[i32], group_size: u32) -> Result<()> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let members = i64::from(group_size);
    for (i, &rank) in sorted.iter().enumerate() {
        if rank < 0 || i64::from(rank) >= members {
            device::invalid!(
                "group_assignment lists rank {rank}, but the communicator has {group_size} members"
            );
        }
        if i > 0 && sorted[i - 1] == rank {
            device::invalid!("group_assignment lists rank {rank} twice");
        }
        if i64::from(rank) != i as i64 {
            device::invalid!(
                "group_assignment does not list rank {i} of the communicator's {group_size} members"
            );
        }
    }
    if (sorted.len() as i64) < members {
        let missing = sorted.len();
        device::invalid!(
            "group_assignment does not list rank {missing} of the communicator's {group_size} members"
        );
    }
    Ok(())
}

impl Communicator {
    fn of_inputs(ctx: &AsyncContext, timeout: Option<Duration>) -> Result<Communicator> {
        let value = |i: usize, name: &str| super::scalar(ctx, i, name);
        let (group_key, rank) = (value(0, "group_key")?, value(1, "rank")?);
        let group_size = group_size(value(2, "group_size")?)?;
        let Some(rank) = u32::try_from(rank).ok().filter(|&rank| rank < group_size) else {
            device::invalid!(
                "rank {rank} is not in a communicator of {group_size} members (group {group_key})"
            );
        };
        Ok(Communicator { group_key, group_size, rank, timeout, next_instance: AtomicI32::new(-1) })
    }

    fn placed(&self, assignment: Arc<[Vec<u32>]>) -> Placed {
        Placed { rank: self.rank, assignment }
    }

    /// Returns the member's request without an input.
    fn request(
        &self,
        ctx: &AsyncContext,
        operation: Operation,
        instance_key: i32,
        placed: Placed,
    ) -> Request {
        Request {
            node: ctx.node.clone(),
            device: ctx.device.clone(),
            operation,
            dtype: DType::Int32,
            shape: Shape::scalar(),
            input: None,
            on_device: None,
            group_size: self.group_size,
            group_key: self.group_key,
            instance_key,
            placed: Some(placed),
            bucket: None,
            position: ctx.position,
            timeout: self.timeout,
        }
    }
}
