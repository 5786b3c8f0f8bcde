//! Kernels of sparse tensors, which are three tensors: the row-major indices of the values, the values, and the dense
//! shape.

mod arithmetic;
mod arrange;
pub(crate) mod carried;
mod coo;
pub(crate) mod empty_rows;
mod map;
mod matmul;
mod reduce;

pub(super) use coo::{Coo, check_sorted, matrix, picked};

use crate::numeric::copied::COPIED;
use crate::numeric::dispatch::{FLOATS, INDEX, NUMBERS, REALS};
use device::kernel::{Kernel, KernelDef};
use graph::DType::{self, *};

const MOVED_T: &[(&str, &[DType])] = &[("T", COPIED)];
const NUMBER: &[(&str, &[DType])] = &[("T", NUMBERS)];
const REAL: &[(&str, &[DType])] = &[("T", REALS)];
/// The dtypes of the values of sparse tensors that can be added.
const ADDED: &[DType] = &[Complex128, Complex64, Int8, Int16, Int32, Int64, Double, Float];

/// The dtypes in which the parts of a sparse tensor can be serialized.
const CARRIED: &[DType] = &[Variant, String];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SparseToDense", &[("T", COPIED), ("Tindices", INDEX)], arrange::to_dense),
    KernelDef::of("SparseReorder", MOVED_T, |_| Kernel::sync(arrange::reorder)),
    KernelDef::of("SparseReshape", &[], |_| Kernel::sync(arrange::reshape)),
    KernelDef::of("SparseConcat", MOVED_T, arrange::concat),
    KernelDef::of("SparseSplit", MOVED_T, arrange::split),
    KernelDef::of("SparseSlice", MOVED_T, |_| Kernel::sync(arrange::slice)),
    KernelDef::of("SparseSliceGrad", NUMBER, |_| Kernel::sync(arrange::slice_grad)),
    KernelDef::of("SparseFillEmptyRows", MOVED_T, |_| Kernel::sync(empty_rows::fill)),
    KernelDef::of("SparseFillEmptyRowsGrad", NUMBER, empty_rows::fill_grad),
    KernelDef::of("SparseAdd", &[("T", ADDED), ("Treal", REALS)], arithmetic::add),
    KernelDef::of("SparseAddGrad", &[("T", ADDED)], |_| Kernel::sync(arithmetic::add_grad)),
    KernelDef::of("SparseTensorDenseAdd", &[("T", NUMBERS), ("Tindices", INDEX)], arithmetic::add_to_dense),
    KernelDef::of("SparseDenseCwiseAdd", REAL, |i| arithmetic::with_dense(i, arithmetic::Operation::Add)),
    KernelDef::of("SparseDenseCwiseMul", REAL, |i| arithmetic::with_dense(i, arithmetic::Operation::Mul)),
    KernelDef::of("SparseDenseCwiseDiv", REAL, |i| arithmetic::with_dense(i, arithmetic::Operation::Div)),
    KernelDef::of("SparseSparseMaximum", REAL, |i| arithmetic::extreme(i, true)),
    KernelDef::of("SparseSparseMinimum", REAL, |i| arithmetic::extreme(i, false)),
    KernelDef::of(
        "SparseTensorDenseMatMul",
        &[("T", &[BFloat16, Complex128, Complex64, Int32, Double, Float, Half]), ("Tindices", INDEX)],
        matmul::with_dense,
    ),
    KernelDef::of(
        "SparseMatMul",
        &[("Ta", &[BFloat16, Float]), ("Tb", &[BFloat16, Float])],
        matmul::mostly_zero,
    ),
    KernelDef::of("SparseReduceSum", NUMBER, |i| reduce::reduce(i, reduce::Operation::Sum, false)),
    KernelDef::of("SparseReduceSumSparse", NUMBER, |i| reduce::reduce(i, reduce::Operation::Sum, true)),
    KernelDef::of("SparseReduceMax", REAL, |i| reduce::reduce(i, reduce::Operation::Max, false)),
    KernelDef::of("SparseReduceMaxSparse", REAL, |i| reduce::reduce(i, reduce::Operation::Max, true)),
    KernelDef::of("SparseSoftmax", &[("T", FLOATS)], reduce::softmax),
    KernelDef::of("AddSparseToTensorsMap", MOVED_T, map::add_one),
    KernelDef::of("AddManySparseToTensorsMap", MOVED_T, map::add_many),
    KernelDef::of("TakeManySparseFromTensorsMap", &[("dtype", COPIED)], map::take_many),
    KernelDef::of("SerializeSparse", &[("T", COPIED), ("out_type", CARRIED)], carried::serialize),
    KernelDef::of("SerializeManySparse", &[("T", COPIED), ("out_type", CARRIED)], carried::serialize_many),
    KernelDef::of("DeserializeSparse", &[("Tserialized", CARRIED)], carried::deserialize),
    KernelDef::of("DeserializeManySparse", &[], carried::deserialize_many),
];
