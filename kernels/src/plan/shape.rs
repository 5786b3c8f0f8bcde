//! Tensors that hold sizes, and the layout of `BroadcastTo`.

use crate::numeric::strided::{InputBox, Layout};
use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

/// Returns a vector of the sizes `values` with the integer dtype `dtype`.
pub fn integers(dtype: DType, values: &[i64]) -> Result<Tensor> {
    match dtype {
        DType::Int64 => Ok(Tensor::vector(values)?),
        _ => {
            let mut out = Tensor::unspecified(DType::Int32, Shape::new(&[values.len()])?)?;
            for (o, &v) in out.values_mut::<i32>()?.iter_mut().zip(values) {
                *o = v
                    .try_into()
                    .map_err(|_| Error::invalid(format!("{v} does not fit the output type int32")))?;
            }
            Ok(out)
        }
    }
}

/// Returns the box of input 0 that `BroadcastTo` outputs; input 1 is the shape of the output.
pub fn broadcast_to(ctx: &KernelContext<'_>) -> Result<InputBox> {
    let (from, sizes) = (ctx.shape(0)?, ctx.input(1)?);
    if sizes.shape().rank() != 1 {
        invalid!("shape must be a vector of {{int32,int64}}, got shape {}", sizes.shape());
    }
    let to = Shape::from_i64(&sizes.to_i64s()?)?;
    let Some(more) = to.rank().checked_sub(from.rank()) else {
        invalid!(
            "Rank of input ({}) must be no greater than rank of output shape ({}).",
            from.rank(),
            to.rank()
        );
    };
    let packed = Layout::packed(from);
    let mut layout = Layout { offset: 0, strides: SmallVec::from_elem(0, to.rank()) };
    for (i, (&f, &stride)) in from.iter().zip(&packed.strides).enumerate() {
        if f == to[more + i] {
            layout.strides[more + i] = stride;
        } else if f != 1 {
            invalid!("Incompatible shapes: {from} vs. {to}");
        }
    }
    Ok(InputBox { dims: to.dims().into(), shape: to, from: layout })
}
