//! Gathering elements by index. For an index out of range the CPU's kernels fail, but the GPU's kernels give
//! zeros, like TensorFlow's, because they cannot report an error.

use super::support::{COPIED, allocate, copied_type_name, function, launch, read, type_name, write};
use crate::engine::{Arguments, Source};
use device::DeviceTensor;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::shape::resolve_axis;
use graph::{DType, Shape};
use kernels::numeric::dispatch::INDEX;
use smallvec::SmallVec;

static SOURCE: Source = Source { file: "gather.cu", text: include_str!("gather.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Gather", &[("Tparams", COPIED), ("Tindices", INDEX)], |init| {
        let gather = Gather::new(init, init.input_type(0))?;
        Kernel::sync(move |ctx| {
            let out = gather.run(ctx, ctx.device_input(0)?, 0, 0)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef {
        host_memory: &["axis"],
        ..KernelDef::enqueuing("GatherV2", &[("Tparams", COPIED), ("Tindices", INDEX)], |init| {
            let batch_dims: i64 = init.attr("batch_dims")?;
            let gather = Gather::new(init, init.input_type(0))?;
            Kernel::sync(move |ctx| {
                let axis = ctx.scalar(2, "axis")?.to_i64s()?[0];
                let out = gather.run(ctx, ctx.device_input(0)?, axis, batch_dims)?;
                ctx.set_output(0, out);
                Ok(())
            })
        })
    },
    KernelDef::enqueuing("GatherNd", &[("Tparams", COPIED), ("Tindices", INDEX)], gather_nd),
];

/// The kernel that gathers rows of a tensor by the indices in input 1.
pub(super) struct Gather(std::sync::Arc<crate::engine::Function>);

impl Gather {
    /// Loads the kernel for a dtype.
    pub(super) fn new(init: &KernelInit<'_>, dtype: DType) -> Result<Gather> {
        let name = format!("gather<{}, {}>", copied_type_name(dtype)?, type_name(init.input_type(1))?);
        Ok(Gather(function(init, &SOURCE, name)?))
    }

    /// Returns the rows of a tensor, along an axis, that the indices in input 1 select.
    pub(super) fn run(
        &self,
        ctx: &KernelContext<'_>,
        params: &DeviceTensor,
        axis: i64,
        batch_dims: i64,
    ) -> Result<DeviceTensor> {
        let indices = ctx.device_input(1)?;
        let (rank, indices_rank) = (params.shape.rank(), indices.shape.rank());
        if rank == 0 {
            device::invalid!("params must be at least 1 dimensional");
        }
        let axis = resolve_axis(axis, rank).ok_or_else(|| {
            let at_least = if axis < 0 { axis.saturating_neg() } else { axis.saturating_add(1) };
            Error::invalid(format!("Shape must be at least rank {at_least} but is rank {rank}"))
        })?;
        let batch = if batch_dims < 0 { batch_dims + indices_rank as i64 } else { batch_dims };
        let Some(batch) = usize::try_from(batch).ok().filter(|&b| b <= indices_rank) else {
            device::invalid!(
                "Expected batch_dims in the range [-{indices_rank}, {indices_rank}], but got {batch_dims}"
            );
        };
        if batch > axis {
            device::invalid!("batch_dims ({batch}) must be less than or equal to axis ({axis}).");
        }
        let dims = &params.shape;
        for i in 0..batch {
            let (p, q) = (dims[i], indices.shape[i]);
            if p != q {
                device::invalid!("params.shape[{i}]: {p} should be equal to indices.shape[{i}]: {q}");
            }
        }
        let mut sizes: SmallVec<[usize; 6]> = dims[..axis].into();
        sizes.extend_from_slice(&indices.shape[batch..]);
        sizes.extend_from_slice(&dims[axis + 1..]);
        let out = allocate(ctx, params.dtype, Shape::new(&sizes)?)?;
        let n = out.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(params)?)
            .address(read(indices)?)
            .address(write(&out)?)
            .count(n)
            .count(dims[batch..axis].iter().product())
            .count(indices.shape[batch..].iter().product())
            .count(dims[axis])
            .count(dims[axis + 1..].iter().product());
        launch(ctx, &self.0, n, arguments)?;
        Ok(out)
    }
}

/// Largest length of an index vector: `MOST_AXES` in `Indexed` of the `.cu` files.
const MOST_INDEXED: usize = 8;

/// Returns the fields of the `Indexed` structure of the `.cu` files: `depth`, and the sizes and strides of the
/// first `depth` axes.
pub(super) fn indexed(shape: &Shape, depth: usize) -> Result<impl Iterator<Item = i64>> {
    if depth > MOST_INDEXED {
        return Err(Error::unimplemented(format!(
            "kernels of GPUs take index vectors of no more than {MOST_INDEXED}, not {depth}"
        )));
    }
    let mut sizes = [0; MOST_INDEXED];
    let mut strides = [0; MOST_INDEXED];
    for (i, (&size, &stride)) in shape.iter().zip(&shape.strides()).take(depth).enumerate() {
        (sizes[i], strides[i]) = (size as i64, stride as i64);
    }
    Ok([depth as i64].into_iter().chain(sizes).chain(strides))
}

/// Makes the kernel of `GatherNd`.
fn gather_nd(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = format!("gather_nd<{}, {}>", copied_type_name(dtype)?, type_name(init.input_type(1))?);
    let gather = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (params, indices) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let Some((&depth, outer)) = indices.shape.split_last() else {
            device::invalid!("indices must be at least a vector");
        };
        let rank = params.shape.rank();
        if depth > rank {
            device::invalid!(
                "index innermost dimension length must be <= params rank; saw: {depth} vs. {rank}"
            );
        }
        let mut dims: SmallVec<[usize; 6]> = outer.into();
        dims.extend_from_slice(&params.shape[depth..]);
        let shape = Shape::new(&dims)?;
        if shape.num_elements() > 0 && params.shape.num_elements() == 0 {
            device::invalid!(
                "Requested more than 0 entries, but params is empty.  Params shape: {}",
                params.shape
            );
        }
        let out = allocate(ctx, dtype, shape)?;
        let n = out.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(params)?)
            .address(read(indices)?)
            .address(write(&out)?)
            .count(n)
            .count(params.shape[depth..].iter().product())
            .structure(indexed(&params.shape, depth)?);
        launch(ctx, &gather, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
