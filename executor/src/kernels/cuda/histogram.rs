//! Placing values among bounds.

use super::support::{allocate, function, launch, read, type_name, write};
use crate::cuda::{Arguments, CudaDevice, Source};
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::kernels::cpu::histogram::boundaries;
use graph::{DType, Shape, Tensor};

static SOURCE: Source = Source { file: "histogram.cu", text: include_str!("histogram.cu") };

pub(super) const KERNELS: &[KernelDef] =
    &[KernelDef::enqueuing("Bucketize", &[("T", &[DType::Int64, DType::Float, DType::Double])], bucketize)];

/// The bounds are brought over once.
fn bucketize(init: &KernelInit<'_>) -> Result<Kernel> {
    let bounds: Vec<f64> = boundaries(init)?.into_iter().map(f64::from).collect();
    let bounds = Tensor::from_slice(&bounds, Shape::new(&[bounds.len()])?)?;
    let bounds = CudaDevice::engine_of(&**init.device)?.upload(&init.node.name, &bounds)?;
    let place = function(init, &SOURCE, format!("bucketize<{}>", type_name(init.input_type(0))?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let y = allocate(ctx, DType::Int32, x.shape.clone())?;
        let n = x.shape.num_elements();
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(read(&bounds)?)
            .address(write(&y)?)
            .count(n)
            .count(bounds.shape.num_elements());
        launch(ctx, &place, n, arguments)?;
        ctx.set_output(0, y);
        Ok(())
    })
}
