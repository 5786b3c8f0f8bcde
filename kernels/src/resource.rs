//! Kernels of resource variables.

use super::gather::gather_nd;
use super::scatter;
use super::variable::{Operation, UpdateFn, count_up_to, update_fn};
use crate::numeric::copied::COPIED;
use crate::numeric::dispatch::{INDEX, NUMBERS, dispatch};
use crate::numeric::philox::entropy;
use crate::plan::resource::{existing, readable, target};
use bytes::Bytes;
use device::handle::container;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::resource::Resource;
use device::variable::{Variable, VariableInput};
use device::{Error, Result};
use graph::{Code, DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("VarHandleOp", &[], handle).brief(),
    KernelDef::of("ReadVariableOp", &[], |init| {
        let variable = VariableInput::new(init, 0);
        let dtype = init.attr::<DType>("dtype")?;
        Kernel::sync(move |ctx| {
            let variable = readable(&variable, ctx, dtype)?;
            ctx.set_output(0, variable.value()?);
            Ok(())
        })
    }),
    KernelDef::of("AssignVariableOp", &[], |init| {
        let variable = VariableInput::new(init, 0);
        let validate = init.attr::<bool>("validate_shape")?;
        Kernel::sync(move |ctx| assign(ctx, &variable, validate))
    }),
    KernelDef::of("AssignAddVariableOp", &[("dtype", NUMBERS)], |init| {
        let variable = VariableInput::new(init, 0);
        let update = update_fn(init.input_type(1), Operation::Add)?;
        Kernel::sync(move |ctx| assign_with(ctx, &variable, update))
    }),
    KernelDef::of("AssignSubVariableOp", &[("dtype", NUMBERS)], |init| {
        let variable = VariableInput::new(init, 0);
        let update = update_fn(init.input_type(1), Operation::Subtract)?;
        Kernel::sync(move |ctx| assign_with(ctx, &variable, update))
    }),
    KernelDef::of("VarIsInitializedOp", &[], |init| {
        let variable = VariableInput::new(init, 0);
        Kernel::sync(move |ctx| {
            let handle = variable.handle(ctx)?;
            let found = ctx.resources().find::<Variable>(&handle.container, &handle.name);
            ctx.set_output(0, Tensor::from(found.is_some_and(|v| v.is_initialized())));
            Ok(())
        })
    }),
    KernelDef::of("DestroyResourceOp", &[], |init| {
        let variable = VariableInput::new(init, 0);
        let ignore_missing = init.attr::<bool>("ignore_lookup_error")?;
        Kernel::sync(move |ctx| destroy(ctx, &variable, ignore_missing))
    }),
    KernelDef::of("VariableShape", &[], |init| {
        let variable = VariableInput::new(init, 0);
        dispatch!(index, init.output_type(0), T => Kernel::sync(move |ctx| {
            let value = variable.get(ctx)?.value()?;
            let sizes = value.shape().iter().map(|&d| {
                T::try_from(d).map_err(|_| Error::invalid(format!("dimension {d} does not fit the output type")))
            });
            let sizes = sizes.collect::<Result<Vec<T>>>()?;
            ctx.set_output(0, Tensor::vector(&sizes)?);
            Ok(())
        }))
    }),
    // `DisableCopyOnRead` disables nothing: a read never copies, because it shares the variable's buffer, and writers
    // do not modify a shared buffer.
    KernelDef::of("DisableCopyOnRead", &[], |init| {
        let variable = VariableInput::new(init, 0);
        Kernel::sync(move |ctx| existing(&variable, ctx).map(|_| ()))
    }),
    KernelDef::of("ResourceGather", &[("Tindices", INDEX)], |init| {
        let variable = VariableInput::new(init, 0);
        let batch_dims = init.attr::<i64>("batch_dims")?;
        let dtype = init.attr::<DType>("dtype")?;
        Kernel::sync(move |ctx| {
            let params = variable.get(ctx)?.value()?;
            if params.dtype() != dtype {
                device::invalid!("Trying to gather {dtype} from a variable of {}", params.dtype());
            }
            let out = gather(&params, ctx.input(1)?, batch_dims)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ResourceGatherNd", &[("dtype", COPIED), ("Tindices", INDEX)], |init| {
        let variable = VariableInput::new(init, 0);
        let dtype = init.attr::<DType>("dtype")?;
        Kernel::sync(move |ctx| {
            let params = variable.get(ctx)?.value()?;
            if params.dtype() != dtype {
                device::invalid!("Trying to gather {dtype} from a variable of {}", params.dtype());
            }
            let out = gather_nd(&params, ctx.input(1)?, false, &ctx.node().name)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ResourceCountUpTo", &[("T", INDEX)], |init| {
        let variable = VariableInput::new(init, 0);
        let (limit, dtype) = (init.attr::<i64>("limit")?, init.attr::<DType>("T")?);
        Kernel::sync(move |ctx| {
            let variable = variable.get(ctx)?;
            if variable.dtype() != dtype {
                device::invalid!("Trying to count in {dtype} with a variable of {}", variable.dtype());
            }
            let before = variable.update(|value| count_up_to(value, limit))?;
            ctx.set_output(0, before);
            Ok(())
        })
    }),
];

/// The `shared_name` that requests a variable with a unique name.
pub(super) const ANONYMOUS: &str = "cd2c89b7-88b7-44c8-ad83-06c2a9158347";

/// Makes the kernel of VarHandleOp. Without a shared name, the handle has an empty name, like TensorFlow's: all such
/// nodes of a container refer to one variable.
fn handle(init: &KernelInit<'_>) -> Result<Kernel> {
    let (container, name) = (container(init)?, init.attr::<String>("shared_name")?);
    let container = match &*container {
        "" => init.device.resources().default_container().clone(),
        named => named.into(),
    };
    let handle = ResourceHandle {
        device: init.device.name().to_string().into(),
        container,
        name: name.into(),
        hash_code: HASH_CODE,
        type_name: Variable::KIND.into(),
        dtypes_and_shapes: vec![(init.attr::<DType>("dtype")?, init.attr::<PartialShape>("shape")?)],
    };
    if *handle.name == *ANONYMOUS {
        // The names start at a random number because a replica holds variables of other processes too, and names must
        // not collide.
        static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| AtomicU64::new(entropy() >> 1));
        return Kernel::sync(move |ctx| {
            let name = format!("_AnonymousVar{}", NEXT.fetch_add(1, Ordering::Relaxed));
            ctx.set_output(0, Tensor::resource(ResourceHandle { name: name.into(), ..handle.clone() }));
            Ok(())
        });
    }
    let handle = Tensor::resource(handle);
    Kernel::sync(move |ctx| {
        ctx.set_output(0, handle.clone());
        Ok(())
    })
}

/// The `hash_code` in handles of variables: an arbitrary number that distinguishes them from other resource handles.
const HASH_CODE: u64 = 0x5661_7269_6162_6c65;

fn assign(ctx: &mut KernelContext<'_>, input: &VariableInput, validate: bool) -> Result<()> {
    let value = ctx.take_input(1)?;
    let variable = target(input, ctx, value.dtype())?;
    let mut current = variable.lock();
    if validate
        && let Some(old) = &*current
        && old.shape() != value.shape()
    {
        device::invalid!(
            "Trying to assign to variable with tensor with wrong shape. Expected {} got {}",
            old.shape(),
            value.shape()
        );
    }
    let old = current.replace(value);
    drop(current);
    drop(old);
    Ok(())
}

fn assign_with(ctx: &mut KernelContext<'_>, input: &VariableInput, update: UpdateFn) -> Result<()> {
    let by = ctx.input(1)?;
    input.get(ctx)?.update(|value| {
        if value.shape() != by.shape() {
            device::invalid!(
                "Cannot update variable with shape {} using a Tensor with shape {}, shapes must be equal.",
                value.shape(),
                by.shape()
            );
        }
        update(value, by)
    })
}

fn destroy(ctx: &mut KernelContext<'_>, input: &VariableInput, ignore_missing: bool) -> Result<()> {
    let handle = input.handle(ctx)?;
    let store = ctx.resources();
    if handle.hash_code != HASH_CODE {
        if store.remove_kind(&handle.container, &handle.type_name, &handle.name) || ignore_missing {
            return Ok(());
        }
        let ResourceHandle { container, name, type_name, .. } = handle;
        let message = format!("Resource {container}/{name}/{type_name} does not exist.");
        return Err(Error::new(Code::NotFound, message));
    }
    if ctx.resources().remove::<Variable>(&handle.container, &handle.name) || ignore_missing {
        return Ok(());
    }
    // The lookup returns the error for a missing variable, unless another step has created the variable since the
    // removal.
    ctx.resources().lookup::<Variable>(&handle.container, &handle.name).map(|_| ())
}

/// Returns the rows of `params` at `indices`, with shape `params[:batch] + indices[batch:] + params[batch + 1:]`.
fn gather(params: &Tensor, indices: &Tensor, batch_dims: i64) -> Result<Tensor> {
    let (shape, at) = (params.shape(), indices.shape());
    let batch = if batch_dims < 0 { batch_dims.saturating_add(at.rank() as i64) } else { batch_dims };
    let batch = usize::try_from(batch).unwrap_or(usize::MAX);
    if shape.rank() == 0 {
        device::invalid!("params must be at least 1 dimensional");
    }
    if batch > at.rank() || batch >= shape.rank() {
        device::invalid!("batch_dims ({batch_dims}) must be less than rank(params) ({})", shape.rank());
    }
    if shape[..batch] != at[..batch] {
        device::invalid!("the batch dimensions of params {shape} and indices {at} differ");
    }
    let rows = scatter::row_numbers(indices, shape[batch])?;
    let dims = [&shape[..batch], &at[batch..], &shape[batch + 1..]].concat();
    let out_shape = Shape::new(&dims)?;
    let row: usize = shape[batch + 1..].iter().product();
    let per_batch: usize = at[batch..].iter().product();
    // Each index is relative to its batch entry; `start(i)` returns the first row of the entry of the `i`-th index.
    let start = |i: usize| i.checked_div(per_batch).unwrap_or(0) * shape[batch];
    if params.dtype() == DType::String {
        let from = params.as_strings()?;
        let picked = rows.iter().enumerate().flat_map(|(i, r)| {
            let at = (start(i) + r) * row;
            from[at..at + row].iter().cloned()
        });
        return Ok(Tensor::strings(picked.collect::<Vec<Bytes>>(), out_shape)?);
    }
    let mut out = Tensor::unspecified(params.dtype(), out_shape)?;
    let size = params.dtype().size().unwrap_or(0) * row;
    let from = params.bytes()?;
    if size > 0 {
        for (i, (to, r)) in out.bytes_mut()?.chunks_exact_mut(size).zip(&rows).enumerate() {
            let at = (start(i) + r) * size;
            to.copy_from_slice(&from[at..at + size]);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
