//! Sparse tensors: the indices of elements, their values, and the dense shape, which is on the host.

use super::copy::{Filler, zeros};
use super::host::{on_demand, same_as_cpu};
use super::support::{
    COPIED, MOST_AXES, SUMMED, allocate, copied_type_name, function, launch, read, type_name, write,
};
use crate::engine::{Arguments, Source};
use device::kernel::{ALL_ARGUMENTS, Kernel, KernelDef, KernelInit};
use device::{Error, Result};
use graph::DType::{self, *};
use kernels::numeric::dispatch::INDEX;
use kernels::plan::sparse::{dense_shape, product_sizes};

static SOURCE: Source = Source { file: "sparse.cu", text: include_str!("sparse.cu") };

/// Dtypes for which ops that rearrange sparse tensors may be placed on a GPU: all dtypes with a byte
/// representation.
const ARRANGED: &[(&str, &[DType])] = &[(
    "T",
    &[
        Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
        Complex64, Complex128,
    ],
)];
const ADDED_UP: &[(&str, &[DType])] = &[(
    "T",
    &[
        Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Complex64,
        Complex128,
    ],
)];

/// Defines a kernel for a GPU that is the CPU's kernel of the op, because the output's shape depends on all
/// indices, which usually are in host memory.
const fn arranging(op: &'static str, types: &'static [(&'static str, &'static [DType])]) -> KernelDef {
    on_demand(same_as_cpu(op, types, ALL_ARGUMENTS))
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["a_shape"],
        ..KernelDef::enqueuing("SparseTensorDenseMatMul", &[("T", SUMMED), ("Tindices", INDEX)], product)
    },
    KernelDef {
        host_memory: &["output_shape"],
        ..KernelDef::enqueuing("SparseToDense", &[("T", COPIED), ("Tindices", INDEX)], to_dense)
    },
    arranging("SparseReorder", ARRANGED),
    arranging("SparseReshape", &[]),
    arranging("SparseSlice", ARRANGED),
    arranging("SparseSplit", ARRANGED),
    arranging("SparseConcat", ARRANGED),
    arranging("SparseFillEmptyRows", ARRANGED),
    arranging("SparseFillEmptyRowsGrad", ADDED_UP),
];

/// Makes the kernel of `SparseTensorDenseMatMul`.
fn product(init: &KernelInit<'_>) -> Result<Kernel> {
    let flips = [init.attr::<bool>("adjoint_a")?, init.attr::<bool>("adjoint_b")?];
    let dtype = init.output_type(0);
    let name = format!("sparse_product<{}, {}>", type_name(dtype)?, type_name(init.input_type(0))?);
    let product = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (sizes, shape) = product_sizes(ctx, flips)?;
        let [rows, inner, columns] = sizes;
        let (indices, values, dense) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(3)?);
        let out = zeros(ctx, dtype, shape)?;
        let n = values.shape.num_elements() * columns;
        let arguments = Arguments::new()
            .address(read(indices)?)
            .address(read(values)?)
            .address(read(dense)?)
            .address(write(&out)?)
            .count(n)
            .count(rows)
            .count(inner)
            .count(columns)
            .flag(flips[0])
            .flag(flips[1]);
        launch(ctx, &product, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of `SparseToDense`; if indices repeat, any of their values may be the result.
fn to_dense(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let name = format!("to_dense<{}, {}>", copied_type_name(dtype)?, type_name(init.input_type(0))?);
    let (place, filler) = (function(init, &SOURCE, name)?, Filler::new(init, dtype)?);
    Kernel::sync(move |ctx| {
        let (count, shape) = dense_shape(ctx)?;
        if shape.rank() > MOST_AXES {
            return Err(Error::unimplemented(format!("GPU kernels support at most {MOST_AXES} axes")));
        }
        let (indices, values, default) = (ctx.device_input(0)?, ctx.device_input(2)?, ctx.device_input(3)?);
        let sizes: Vec<i64> = (0..MOST_AXES).map(|i| shape.get(i).map_or(1, |&size| size as i64)).collect();
        let rank = shape.rank() as i64;
        let out = allocate(ctx, dtype, shape)?;
        filler.fill(ctx, default, &out)?;
        let arguments = Arguments::new()
            .address(read(indices)?)
            .address(read(values)?)
            .address(write(&out)?)
            .count(count)
            .count(usize::from(values.shape.num_elements() > 1))
            .structure([rank].into_iter().chain(sizes));
        launch(ctx, &place, count, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
