//! Sparse tensors as three dense tensors: the indices of the values, one per row; the values; the dense shape.

use super::broadcast::arrived;
use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SparseToDense",
        inputs: &[
            "sparse_indices: Tindices",
            "output_shape: Tindices",
            "sparse_values: T",
            "default_value: T",
        ],
        outputs: &["dense: T"],
        attrs: &["validate_indices: bool = true", "T: type", "Tindices: {int32, int64}"],
        infer: to_dense,
        gradient: Gradient::Defined(to_dense_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReorder",
        inputs: &["input_indices: int64", "input_values: T", "input_shape: int64"],
        outputs: &["output_indices: int64", "output_values: T"],
        attrs: &["T: type"],
        infer: same_places,
        gradient: Gradient::Defined(reorder_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReshape",
        inputs: &["input_indices: int64", "input_shape: int64", "new_shape: int64"],
        outputs: &["output_indices: int64", "output_shape: int64"],
        infer: reshape,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseConcat",
        inputs: &["indices: N * int64", "values: N * T", "shapes: N * int64"],
        outputs: &["output_indices: int64", "output_values: T", "output_shape: int64"],
        attrs: &["concat_dim: int", "N: int >= 2", "T: type"],
        infer: concat,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSplit",
        inputs: &["split_dim: int64", "indices: int64", "values: T", "shape: int64"],
        outputs: &[
            "output_indices: num_split * int64",
            "output_values: num_split * T",
            "output_shape: num_split * int64",
        ],
        attrs: &["num_split: int >= 1", "T: type"],
        infer: split,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSlice",
        inputs: &["indices: int64", "values: T", "shape: int64", "start: int64", "size: int64"],
        outputs: &["output_indices: int64", "output_values: T", "output_shape: int64"],
        attrs: &["T: type"],
        infer: |infer| sparse_outputs(infer, 2),
        gradient: Gradient::Defined(slice_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSliceGrad",
        inputs: &[
            "backprop_val_grad: T",
            "input_indices: int64",
            "input_start: int64",
            "output_indices: int64",
        ],
        outputs: &["val_grad: T"],
        attrs: &["T: numbertype"],
        infer: |infer| values_of(infer, 0, 1),
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseFillEmptyRows",
        inputs: &["indices: int64", "values: T", "dense_shape: int64", "default_value: T"],
        outputs: &[
            "output_indices: int64",
            "output_values: T",
            "empty_row_indicator: bool",
            "reverse_index_map: int64",
        ],
        attrs: &["T: type"],
        infer: fill_empty_rows,
        gradient: Gradient::Defined(fill_empty_rows_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseFillEmptyRowsGrad",
        inputs: &["reverse_index_map: int64", "grad_values: T"],
        outputs: &["d_values: T", "d_default_value: T"],
        attrs: &["T: type"],
        infer: fill_empty_rows_grad,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseAdd",
        inputs: &[
            "a_indices: int64",
            "a_values: T",
            "a_shape: int64",
            "b_indices: int64",
            "b_values: T",
            "b_shape: int64",
            "thresh: Treal",
        ],
        outputs: &["sum_indices: int64", "sum_values: T", "sum_shape: int64"],
        attrs: &["T: numbertype", "Treal: realnumbertype"],
        infer: |infer| sparse_outputs(infer, 2),
        gradient: Gradient::Defined(add_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseAddGrad",
        inputs: &["backprop_val_grad: T", "a_indices: int64", "b_indices: int64", "sum_indices: int64"],
        outputs: &["a_val_grad: T", "b_val_grad: T"],
        attrs: &["T: numbertype"],
        infer: add_grad,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseTensorDenseAdd",
        inputs: &["a_indices: Tindices", "a_values: T", "a_shape: Tindices", "b: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype", "Tindices: {int32, int64}"],
        infer: |infer| pass(infer, 3),
        gradient: Gradient::Defined(dense_add_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseDenseCwiseAdd",
        inputs: &["sp_indices: int64", "sp_values: T", "sp_shape: int64", "dense: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype"],
        infer: |infer| values_of(infer, 0, 0),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseDenseCwiseMul",
        inputs: &["sp_indices: int64", "sp_values: T", "sp_shape: int64", "dense: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype"],
        infer: |infer| values_of(infer, 0, 0),
        gradient: Gradient::Defined(dense_product_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseDenseCwiseDiv",
        inputs: &["sp_indices: int64", "sp_values: T", "sp_shape: int64", "dense: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype"],
        infer: |infer| values_of(infer, 0, 0),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSparseMaximum",
        inputs: &[
            "a_indices: int64",
            "a_values: T",
            "a_shape: int64",
            "b_indices: int64",
            "b_values: T",
            "b_shape: int64",
        ],
        outputs: &["output_indices: int64", "output_values: T"],
        attrs: &["T: realnumbertype"],
        infer: some_values,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSparseMinimum",
        inputs: &[
            "a_indices: int64",
            "a_values: T",
            "a_shape: int64",
            "b_indices: int64",
            "b_values: T",
            "b_shape: int64",
        ],
        outputs: &["output_indices: int64", "output_values: T"],
        attrs: &["T: numbertype"],
        infer: some_values,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseTensorDenseMatMul",
        inputs: &["a_indices: Tindices", "a_values: T", "a_shape: int64", "b: T"],
        outputs: &["product: T"],
        attrs: &[
            "T: type",
            "Tindices: {int32, int64} = int64",
            "adjoint_a: bool = false",
            "adjoint_b: bool = false",
        ],
        infer: dense_product,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseMatMul",
        inputs: &["a: Ta", "b: Tb"],
        outputs: &["product: float"],
        attrs: &[
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            "a_is_sparse: bool = false",
            "b_is_sparse: bool = false",
            "Ta: {float, bfloat16} = float",
            "Tb: {float, bfloat16} = float",
        ],
        infer: product,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReduceSum",
        inputs: &["input_indices: int64", "input_values: T", "input_shape: int64", "reduction_axes: int32"],
        outputs: &["output: T"],
        attrs: &["keep_dims: bool = false", "T: numbertype"],
        infer: reduce,
        gradient: Gradient::Defined(reduce_sum_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReduceMax",
        inputs: &["input_indices: int64", "input_values: T", "input_shape: int64", "reduction_axes: int32"],
        outputs: &["output: T"],
        attrs: &["keep_dims: bool = false", "T: realnumbertype"],
        infer: reduce,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReduceSumSparse",
        inputs: &["input_indices: int64", "input_values: T", "input_shape: int64", "reduction_axes: int32"],
        outputs: &["output_indices: int64", "output_values: T", "output_shape: int64"],
        attrs: &["keep_dims: bool = false", "T: numbertype"],
        infer: reduce_to_sparse,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseReduceMaxSparse",
        inputs: &["input_indices: int64", "input_values: T", "input_shape: int64", "reduction_axes: int32"],
        outputs: &["output_indices: int64", "output_values: T", "output_shape: int64"],
        attrs: &["keep_dims: bool = false", "T: realnumbertype"],
        infer: reduce_to_sparse,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSoftmax",
        inputs: &["sp_indices: int64", "sp_values: T", "sp_shape: int64"],
        outputs: &["output: T"],
        attrs: &["T: {half, float, double}"],
        infer: |infer| values_of(infer, 0, 0),
        ..OpDef::NEW
    },
    OpDef {
        name: "AddSparseToTensorsMap",
        inputs: &["sparse_indices: int64", "sparse_values: T", "sparse_shape: int64"],
        outputs: &["sparse_handle: int64"],
        attrs: &["T: type", "container: string = ''", "shared_name: string = ''"],
        traits: Traits::STATEFUL,
        infer: scalar_output,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AddManySparseToTensorsMap",
        inputs: &["sparse_indices: int64", "sparse_values: T", "sparse_shape: int64"],
        outputs: &["sparse_handles: int64"],
        attrs: &["T: type", "container: string = ''", "shared_name: string = ''"],
        traits: Traits::STATEFUL,
        infer: vector_output,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TakeManySparseFromTensorsMap",
        inputs: &["sparse_handles: int64"],
        outputs: &["sparse_indices: int64", "sparse_values: dtype", "sparse_shape: int64"],
        attrs: &["dtype: type", "container: string = ''", "shared_name: string = ''"],
        traits: Traits::STATEFUL,
        infer: unknown_triple,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SerializeSparse",
        inputs: &["sparse_indices: int64", "sparse_values: T", "sparse_shape: int64"],
        outputs: &["serialized_sparse: out_type"],
        attrs: &["T: type", "out_type: {string, variant} = string"],
        infer: |infer| {
            infer.set(0, PartialShape::vector(Some(3)));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SerializeManySparse",
        inputs: &["sparse_indices: int64", "sparse_values: T", "sparse_shape: int64"],
        outputs: &["serialized_sparse: out_type"],
        attrs: &["T: type", "out_type: {string, variant} = string"],
        infer: |infer| {
            infer.set(0, [None, Some(3)]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeserializeSparse",
        inputs: &["serialized_sparse: Tserialized"],
        outputs: &["sparse_indices: int64", "sparse_values: dtype", "sparse_shape: int64"],
        attrs: &["dtype: type", "Tserialized: {string, variant} = string"],
        infer: unknown_triple,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeserializeManySparse",
        inputs: &["serialized_sparse: string"],
        outputs: &["sparse_indices: int64", "sparse_values: dtype", "sparse_shape: int64"],
        attrs: &["dtype: type"],
        infer: |infer| {
            infer.input_of_rank(0, 2)?;
            unknown_triple(infer)
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn vector() -> PartialShape {
    PartialShape::vector(None)
}

/// Gives output 0 the shape of input `input`.
fn pass(infer: &mut Infer<'_>, input: usize) -> Result<()> {
    let shape = infer.input(input);
    infer.set(0, shape);
    Ok(())
}

/// Gives output `output` the shape of a vector with one value per row of input `input`, which holds indices.
fn values_of(infer: &mut Infer<'_>, output: usize, input: usize) -> Result<()> {
    let indices = infer.input_of_rank(input, 2)?;
    infer.set(output, PartialShape::vector(indices.dim(0)));
    Ok(())
}

/// Sets the shapes of outputs 0 to 2: the indices, values and shape of a sparse tensor with an unknown number of
/// values, whose rank is the length of input `shape`.
fn sparse_outputs(infer: &mut Infer<'_>, shape: usize) -> Result<()> {
    let rank = infer.input_of_rank(shape, 1)?.dim(0);
    set_sparse(infer, [0, 1, 2], None, rank);
    Ok(())
}

fn set_sparse(infer: &mut Infer<'_>, at: [usize; 3], count: Dim, rank: Dim) {
    infer.set(at[0], [count, rank]);
    infer.set(at[1], PartialShape::vector(count));
    infer.set(at[2], PartialShape::vector(rank));
}

fn to_dense(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.value_as_shape(1)?;
    infer.set(0, shape);
    Ok(())
}

fn same_places(infer: &mut Infer<'_>) -> Result<()> {
    let (indices, values) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 1)?);
    infer.set(0, indices);
    infer.set(1, values);
    Ok(())
}

fn reshape(infer: &mut Infer<'_>) -> Result<()> {
    let (indices, shape) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(2, 1)?);
    infer.set(0, [indices.dim(0), shape.dim(0)]);
    infer.set(1, shape);
    Ok(())
}

fn concat(infer: &mut Infer<'_>) -> Result<()> {
    let parts = infer.num_inputs() / 3;
    let mut count = Some(0);
    let mut rank = PartialShape::unknown();
    for i in 0..parts {
        let rows = infer.input_of_rank(i, 2)?.dim(0);
        count = count.zip(rows).and_then(|(a, b)| usize::checked_add(a, b));
        rank = rank.merge(&infer.input_of_rank(2 * parts + i, 1)?)?;
    }
    set_sparse(infer, [0, 1, 2], count, rank.dim(0));
    Ok(())
}

fn split(infer: &mut Infer<'_>) -> Result<()> {
    let rank = infer.input_of_rank(3, 1)?.dim(0);
    let parts = infer.num_outputs() / 3;
    for i in 0..parts {
        set_sparse(infer, [i, parts + i, 2 * parts + i], None, rank);
    }
    Ok(())
}

fn fill_empty_rows(infer: &mut Infer<'_>) -> Result<()> {
    let indices = infer.input_of_rank(0, 2)?;
    let rows = infer.value_as_shape(2)?.dim(0);
    infer.set(0, [None, indices.dim(1)]);
    infer.set(1, vector());
    infer.set(2, PartialShape::vector(rows));
    infer.set(3, PartialShape::vector(indices.dim(0)));
    Ok(())
}

fn fill_empty_rows_grad(infer: &mut Infer<'_>) -> Result<()> {
    let map = infer.input_of_rank(0, 1)?;
    infer.set(0, map);
    infer.set(1, PartialShape::scalar());
    Ok(())
}

fn add_grad(infer: &mut Infer<'_>) -> Result<()> {
    values_of(infer, 0, 1)?;
    values_of(infer, 1, 2)
}

fn some_values(infer: &mut Infer<'_>) -> Result<()> {
    let rank = infer.input_of_rank(2, 1)?.dim(0);
    infer.set(0, [None, rank]);
    infer.set(1, vector());
    Ok(())
}

fn dense_product(infer: &mut Infer<'_>) -> Result<()> {
    let (a, b) = (infer.value_as_shape(2)?, infer.input_of_rank(3, 2)?);
    let rows = a.dim(usize::from(infer.attr::<bool>("adjoint_a")?));
    let columns = b.dim(usize::from(!infer.attr::<bool>("adjoint_b")?));
    infer.set(0, [rows, columns]);
    Ok(())
}

fn product(infer: &mut Infer<'_>) -> Result<()> {
    let (a, b) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 2)?);
    let rows = a.dim(usize::from(infer.attr::<bool>("transpose_a")?));
    let columns = b.dim(usize::from(!infer.attr::<bool>("transpose_b")?));
    infer.set(0, [rows, columns]);
    Ok(())
}

fn reduce(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.value_as_shape(2)?;
    let (Some(dims), Some(axes)) = (shape.dims(), infer.value(3)) else { return Ok(()) };
    let mut reduced = vec![false; dims.len()];
    for axis in axes.to_i64s()? {
        match crate::shape::resolve_axis(axis, dims.len()) {
            Some(at) => reduced[at] = true,
            None => crate::invalid!(
                "Invalid reduction dimension {axis}, for input with {} dimensions.",
                dims.len()
            ),
        }
    }
    let keep = infer.attr::<bool>("keep_dims")?;
    let out = dims.iter().zip(&reduced).filter(|(_, reduced)| keep || !**reduced);
    let out: Vec<Dim> = out.map(|(&d, &reduced)| if reduced { Some(1) } else { d }).collect();
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn reduce_to_sparse(infer: &mut Infer<'_>) -> Result<()> {
    set_sparse(infer, [0, 1, 2], None, None);
    Ok(())
}

fn scalar_output(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}

fn vector_output(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, vector());
    Ok(())
}

fn unknown_triple(infer: &mut Infer<'_>) -> Result<()> {
    set_sparse(infer, [0, 1, 2], None, None);
    Ok(())
}

/// Returns one gradient per input of the node: `gradients` holds pairs of input index and gradient; all other inputs
/// have none.
fn only(forward: &Forward, gradients: &[(usize, Output)]) -> Vec<Option<Output>> {
    let mut out = vec![None; forward.inputs.len()];
    for &(input, gradient) in gradients {
        out[input] = Some(gradient);
    }
    out
}

/// Returns the elements of a dense tensor at sparse indices.
fn at_indices(scope: &Scope, dense: Output, indices: Output) -> Output {
    scope.op("GatherNd").input(dense).input(indices).output()
}

fn to_dense_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let values = at_indices(scope, dz, forward.input(0));
    let total = |x: Output| {
        let axes = scope.range(scope.constant(0i32), scope.rank_of(x), scope.constant(1i32));
        scope.op("Sum").input(x).input(axes).output()
    };
    let default = scope.sub(total(dz), total(values));
    Ok(only(forward, &[(2, values), (3, default)]))
}

/// Gradient of SparseReorder: the numbers 0, 1, … are reordered in place of the values, which gives the permutation,
/// and `dz` is gathered by the inverse permutation.
fn reorder_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz.get(1).copied().flatten() else { return Ok(vec![None; 3]) };
    let (indices, shape) = (forward.input(0), forward.input(2));
    let size = scope.op("Size").input(forward.input(1)).attr("out_type", DType::Int64).output();
    let (zero, one) = (scope.constant(0i64), scope.constant(1i64));
    let numbers = scope.range(zero, size, one);
    let sorted = scope.op("SparseReorder").input(indices).input(numbers).input(shape).outputs();
    let Some(&order) = sorted.get(1) else { return Ok(vec![None; 3]) };
    let back = scope.op("InvertPermutation").input(order).output();
    Ok(only(forward, &[(1, scope.gather(dz, back, 0))]))
}

fn slice_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz.get(1).copied().flatten() else { return Ok(vec![None; 5]) };
    let call = scope.op("SparseSliceGrad").input(dz).input(forward.input(0)).input(forward.input(3));
    Ok(only(forward, &[(1, call.input(forward.output(0)).output())]))
}

fn fill_empty_rows_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz.get(1).copied().flatten() else { return Ok(vec![None; 4]) };
    let both = scope.op("SparseFillEmptyRowsGrad").input(forward.output(3)).input(dz).outputs();
    let &[values, default] = &both[..] else { return Ok(vec![None; 4]) };
    Ok(only(forward, &[(1, values), (3, default)]))
}

fn add_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz.get(1).copied().flatten() else { return Ok(vec![None; 7]) };
    let call = scope.op("SparseAddGrad").input(dz).input(forward.input(0)).input(forward.input(3));
    let both = call.input(forward.output(0)).outputs();
    let &[a, b] = &both[..] else { return Ok(vec![None; 7]) };
    Ok(only(forward, &[(1, a), (4, b)]))
}

fn dense_add_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    Ok(only(forward, &[(1, at_indices(scope, dz, forward.input(0))), (3, dz)]))
}

/// Gradient of a product with respect to the sparse operand's values; like in TensorFlow, the dense operand has no
/// gradient.
fn dense_product_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let (indices, shape, dense) = (forward.input(0), forward.input(2), forward.input(3));
    let call = scope.op("SparseDenseCwiseMul").input(indices).input(dz).input(shape);
    Ok(only(forward, &[(1, call.input(dense).output())]))
}

fn reduce_sum_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let (indices, shape) = (forward.input(0), forward.input(2));
    let Some(rank) = scope.shape(shape).dim(0) else {
        return Err(crate::error::Error::unimplemented("the gradient of SparseReduceSum needs a known rank"));
    };
    let Some(axes) = scope.value(forward.input(3)) else {
        return Err(crate::error::Error::unimplemented(
            "the gradient of SparseReduceSum needs constant axes",
        ));
    };
    let reduced: Vec<Option<usize>> =
        axes.to_i64s()?.iter().map(|&axis| crate::shape::resolve_axis(axis, rank)).collect();
    // `dz` has size 1 along the reduced axes, so the indices of `dz` are 0 there.
    let mut dz = dz;
    if !forward.attr::<bool>("keep_dims")? {
        for axis in (0..rank).filter(|&axis| reduced.contains(&Some(axis))) {
            dz = scope.expand_dims(dz, axis as i32);
        }
    }
    let mask: Vec<i64> = (0..rank).map(|axis| i64::from(!reduced.contains(&Some(axis)))).collect();
    let kept = scope.mul(indices, scope.constant_vector(&mask));
    Ok(only(forward, &[(1, at_indices(scope, dz, kept))]))
}
