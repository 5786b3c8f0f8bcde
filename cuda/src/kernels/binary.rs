//! Arithmetic of two operands, element by element, with broadcasting.

use super::elementwise::{broadcast, zip};
use super::support::{
    NUMBERS, allocate_or_reuse, function, is_unique, kernel_stream, launch, read, type_name, write,
};
use crate::engine::{Arguments, Source};
use device::Result;
use device::kernel::{Kernel, KernelDef, KernelInit};
use graph::DType::{self, Int8, Int16, UInt8, UInt16, UInt32, UInt64};
use kernels::numeric::dispatch::{COMPLEX, FLOATS, INTEGERS};

pub(super) static SOURCE: Source = Source { file: "binary.cu", text: include_str!("binary.cu") };

macro_rules! kernels {
    ($($types:ident: $($op:literal = $function:literal)*;)*) => {
        &[
            $($(KernelDef::enqueuing($op, &[("T", $types)], |init| zip(init, &SOURCE, $function, 0.0, broadcast)),)*)*
            KernelDef::enqueuing("AddN", &[("T", NUMBERS)], add_n),
            KernelDef::enqueuing("AddN", &[("T", COMPLEX)], add_n),
            KernelDef::enqueuing("AddN", &[("T", OTHERS)], add_n),
        ]
    };
}

pub(super) const KERNELS: &[KernelDef] = kernels! {
    NUMBERS:
        "Add" = "AddV2" "AddV2" = "AddV2" "Sub" = "Sub" "Mul" = "Mul" "Div" = "Div" "FloorDiv" = "FloorDiv"
        "FloorMod" = "FloorMod" "TruncateDiv" = "TruncateDiv" "TruncateMod" = "TruncateMod" "Mod" = "TruncateMod"
        "Maximum" = "Maximum" "Minimum" = "Minimum" "Pow" = "Pow" "SquaredDifference" = "SquaredDifference";
    FLOATS:
        "RealDiv" = "RealDiv" "DivNoNan" = "DivNoNan" "MulNoNan" = "MulNoNan" "Atan2" = "Atan2" "Xdivy" = "Xdivy"
        "Xlogy" = "Xlogy" "Xlog1py" = "Xlog1py";
    COMPLEX:
        "Add" = "AddV2" "AddV2" = "AddV2" "Sub" = "Sub" "Mul" = "Mul" "Div" = "RealDiv" "RealDiv" = "RealDiv";
    OLD_OTHERS:
        "Add" = "AddV2";
    OTHERS:
        "AddV2" = "AddV2" "Sub" = "Sub" "Mul" = "Mul" "Maximum" = "Maximum" "Minimum" = "Minimum";
    INTEGERS:
        "BitwiseAnd" = "BitwiseAnd" "BitwiseOr" = "BitwiseOr" "BitwiseXor" = "BitwiseXor" "LeftShift" = "LeftShift"
        "RightShift" = "RightShift";
};

/// Integer dtypes other than `int64`; results wrap around on overflow.
const OTHERS: &[DType] = &[Int8, Int16, UInt8, UInt16, UInt32, UInt64];
/// Integer dtypes of `Add`, which accepts fewer dtypes than `AddV2`.
const OLD_OTHERS: &[DType] = &[Int8, Int16, UInt8];

/// Makes the kernel of `AddN`, which adds each tensor after the first to the sum so far.
fn add_n(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let add = function(init, &SOURCE, format!("add_to<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let mut first = ctx.take_device_input(0)?;
        let shape = first.shape.clone();
        for i in 1..ctx.num_inputs() {
            if *ctx.shape(i)? != shape {
                device::invalid!(
                    "Inputs to operation {} of type AddN must have the same size and shape.  Input 0: {shape} != \
                     input {i}: {}",
                    ctx.node().name,
                    ctx.shape(i)?
                );
            }
        }
        let is_own = is_unique(&mut first);
        let sum = match ctx.num_inputs() {
            1 => first,
            _ => {
                let sum = allocate_or_reuse(ctx, &mut first, dtype, shape)?;
                if !is_own {
                    kernel_stream(ctx)?.copy(&sum, &first)?;
                }
                sum
            }
        };
        let n = sum.shape.num_elements();
        for i in 1..ctx.num_inputs() {
            let arguments =
                Arguments::new().address(read(ctx.device_input(i)?)?).address(write(&sum)?).count(n);
            launch(ctx, &add, n, arguments)?;
        }
        ctx.set_output(0, sum);
        Ok(())
    })
}
