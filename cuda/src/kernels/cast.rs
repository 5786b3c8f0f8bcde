//! Conversions between dtypes, by value and by bytes.

use super::support::{self, allocate, launch, read, type_name, write};
use crate::engine::{Arguments, Function, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::DType::{self, *};
use kernels::plan::cast::bitcast_shape;
use std::sync::Arc;

static SOURCE: Source = Source { file: "cast.cu", text: include_str!("cast.cu") };

const TYPES: &[DType] = &[
    Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

/// Dtypes that `Bitcast` accepts.
const NUMBERS: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
    Complex128,
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("Cast", &[("SrcT", TYPES), ("DstT", TYPES)], cast),
    KernelDef::enqueuing("Bitcast", &[("T", NUMBERS), ("type", NUMBERS)], bitcast),
];

/// Returns the kernel that converts elements. Its arguments are the addresses of the input and of the output,
/// and the number of elements.
pub(super) fn function(init: &KernelInit<'_>, from: DType, to: DType) -> Result<Arc<Function>> {
    support::function(init, &SOURCE, format!("cast<{}, {}>", type_name(from)?, type_name(to)?))
}

/// The conversion of a result to its own dtype from the wider dtype in which it was computed; no kernel runs if
/// the two dtypes are equal.
#[derive(Debug)]
pub(super) struct Narrowing {
    to: DType,
    function: Option<Arc<Function>>,
}

impl Narrowing {
    /// Loads the kernel that converts to dtype `to` from the dtype in which results of dtype `to` are computed.
    pub(super) fn new(init: &KernelInit<'_>, to: DType) -> Result<Narrowing> {
        let from = support::wide(to);
        let function = if from == to { None } else { Some(function(init, from, to)?) };
        Ok(Narrowing { to, function })
    }

    /// Returns `x` converted to the result's dtype.
    pub(super) fn run(&self, ctx: &KernelContext<'_>, x: DeviceTensor) -> Result<DeviceTensor> {
        let Some(function) = &self.function else { return Ok(x) };
        let y = allocate(ctx, self.to, x.shape.clone())?;
        let n = y.shape.num_elements();
        launch(ctx, function, n, Arguments::new().address(read(&x)?).address(write(&y)?).count(n))?;
        Ok(y)
    }
}

fn cast(init: &KernelInit<'_>) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    let function = function(init, from, to)?;
    Kernel::sync(move |ctx| {
        if from == to {
            let value = ctx.take_value(0);
            ctx.set_output(0, value);
            return Ok(());
        }
        let x = ctx.take_device_input(0)?;
        let y = allocate(ctx, to, x.shape.clone())?;
        let n = y.shape.num_elements();
        launch(ctx, &function, n, Arguments::new().address(read(&x)?).address(write(&y)?).count(n))?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `Bitcast`, which outputs the bytes of its input as elements of another dtype.
fn bitcast(init: &KernelInit<'_>) -> Result<Kernel> {
    let (from, to) = (init.input_type(0), init.output_type(0));
    Kernel::sync(move |ctx| {
        let x = ctx.take_device_input(0)?;
        let shape = bitcast_shape(&x.shape, from, to)?;
        ctx.set_output(0, DeviceTensor { dtype: to, shape, memory: x.memory });
        Ok(())
    })
}
