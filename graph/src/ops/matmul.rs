//! Matrix products, single and batched.

use super::broadcast::{arrived, reduce_leading_gradients};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const fn batches(name: &'static str, attrs: &'static [&'static str], gradient: Gradient) -> OpDef {
    OpDef {
        name,
        inputs: &["x: T", "y: T"],
        outputs: &["output: T"],
        attrs,
        infer: batch_shape,
        gradient,
        ..OpDef::NEW
    }
}

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MatMul",
        inputs: &["a: T", "b: T"],
        outputs: &["product: T"],
        attrs: &[
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            "T: {bfloat16, half, float, double, int32, int64, uint8, uint16, uint32, uint64, complex64, complex128}",
            "grad_a: bool = false",
            "grad_b: bool = false",
        ],
        infer,
        gradient: Gradient::Defined(|scope, forward, gradients| {
            let [da, db] = factors(scope, forward, arrived(forward, gradients)?, &MAT_MUL)?;
            Ok(vec![Some(da), Some(db)])
        }),
        ..OpDef::NEW
    },
    batches(
        "BatchMatMul",
        &[
            "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}",
            "adj_x: bool = false",
            "adj_y: bool = false",
            "grad_x: bool = false",
            "grad_y: bool = false",
        ],
        Gradient::Defined(|scope, forward, gradients| {
            let [dx, dy] = factors(scope, forward, arrived(forward, gradients)?, &BATCH_MAT_MUL)?;
            Ok(vec![Some(dx), Some(dy)])
        }),
    ),
    batches(
        "BatchMatMulV2",
        &[
            "T: {bfloat16, half, float, double, int16, int32, int64, uint8, uint16, uint32, uint64, complex64, complex128}",
            "adj_x: bool = false",
            "adj_y: bool = false",
            "grad_x: bool = false",
            "grad_y: bool = false",
        ],
        Gradient::Defined(|scope, forward, gradients| {
            let [dx, dy] = factors(scope, forward, arrived(forward, gradients)?, &BATCH_MAT_MUL_V2)?;
            reduce_leading_gradients(scope, [forward.input(0), forward.input(1)], [Some(dx), Some(dy)], 2)
        }),
    ),
    OpDef {
        name: "BatchMatMulV3",
        inputs: &["x: Ta", "y: Tb"],
        outputs: &["output: Tout"],
        attrs: &[
            "Ta: {bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, complex128}",
            "Tb: {bfloat16, half, float, double, uint8, int8, int16, int32, int64, complex64, complex128}",
            "Tout: {bfloat16, half, float, double, int16, int32, int64, complex64, complex128}",
            "adj_x: bool = false",
            "adj_y: bool = false",
            "grad_x: bool = false",
            "grad_y: bool = false",
        ],
        infer: batch_shape,
        gradient: Gradient::Defined(|scope, forward, gradients| {
            let dz = arrived(forward, gradients)?;
            let inputs = [forward.input(0), forward.input(1)];
            let out = forward.attr::<DType>("Tout")?;
            // A factor of integers has no gradient. The gradient of the other factor is a product in the output's
            // element type.
            let has_gradient = [forward.attr::<DType>("Ta")? == out, forward.attr::<DType>("Tb")? == out];
            let factors = inputs.map(|x| scope.cast(x, out));
            let flips = (forward.attr::<bool>("adj_x")?, forward.attr::<bool>("adj_y")?);
            let both = factor_gradients(scope, factors, flips, dz, &BATCH_MAT_MUL_V2);
            let kept = [0, 1].map(|i| has_gradient[i].then_some(both[i]));
            reduce_leading_gradients(scope, inputs, kept, 2)
        }),
        ..OpDef::NEW
    },
];

/// Infers the shape of the product of two matrices, either of which may be transposed.
pub(super) fn infer(infer: &mut Infer<'_>) -> Result<()> {
    let (a, b) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 2)?);
    let shape = matrix_shape(infer, [&a, &b], ["transpose_a", "transpose_b"])?;
    infer.set(0, PartialShape::of_dims(shape));
    Ok(())
}

/// Returns the numbers of rows and columns of the product of the matrices in the operands' last two axes.
fn matrix_shape(infer: &Infer<'_>, operands: [&PartialShape; 2], flips: [&str; 2]) -> Result<[Dim; 2]> {
    let mut sizes = [[None; 2]; 2];
    for i in 0..2 {
        if let Some([.., rows, columns]) = operands[i].dims() {
            sizes[i] = if infer.attr::<bool>(flips[i])? { [*columns, *rows] } else { [*rows, *columns] };
        }
    }
    let [[rows, inner], [inner_too, columns]] = sizes;
    if let (Some(a), Some(b)) = (inner, inner_too)
        && a != b
    {
        crate::invalid!(
            "Dimensions must be equal, but are {a} and {b} for the product of {} and {}",
            operands[0],
            operands[1]
        );
    }
    Ok([rows, columns])
}

fn batch_shape(infer: &mut Infer<'_>) -> Result<()> {
    let (x, y) = (infer.input(0), infer.input(1));
    for shape in [&x, &y] {
        if let Some(rank) = shape.rank()
            && rank < 2
        {
            crate::invalid!("Shape must be at least rank 2 but is rank {rank}");
        }
    }
    let matrix = matrix_shape(infer, [&x, &y], ["adj_x", "adj_y"])?;
    let batch = |s: &PartialShape| match s.dims() {
        Some([batch @ .., _, _]) => PartialShape::of_dims(batch.iter().copied()),
        _ => PartialShape::unknown(),
    };
    let (x, y) = (batch(&x), batch(&y));
    let batch =
        if infer.op().name() == "BatchMatMul" { x.merge(&y)? } else { PartialShape::broadcast(&x, &y)? };
    if let Some(batch) = batch.dims() {
        let shape = PartialShape::of_dims(batch.iter().copied().chain(matrix));
        infer.set(0, shape);
    }
    Ok(())
}

/// The name of a matrix product op, and the names of its attributes that transpose operands.
struct ProductOp {
    op: &'static str,
    flips: [&'static str; 2],
}

const MAT_MUL: ProductOp = ProductOp { op: "MatMul", flips: ["transpose_a", "transpose_b"] };
const BATCH_MAT_MUL: ProductOp = ProductOp { op: "BatchMatMul", flips: ["adj_x", "adj_y"] };
const BATCH_MAT_MUL_V2: ProductOp = ProductOp { op: "BatchMatMulV2", flips: ["adj_x", "adj_y"] };

/// Returns the gradients of both factors; each is a product of the other factor with `dz`.
fn factors(scope: &Scope, forward: &Forward, dz: Output, names: &ProductOp) -> Result<[Output; 2]> {
    // The gradient needs adjoints of the factors. MatMul only transposes, so its factors are conjugated here; the
    // attributes of the batched ops conjugate and transpose.
    let whole = |x: Output| if names.op == "MatMul" { scope.conj(x) } else { x };
    let factors = [whole(forward.input(0)), whole(forward.input(1))];
    let flips = (forward.attr::<bool>(names.flips[0])?, forward.attr::<bool>(names.flips[1])?);
    Ok(factor_gradients(scope, factors, flips, dz, names))
}

/// Returns the gradients of two factors, each of which is an adjoint in the product if its flag in `flips` is set.
fn factor_gradients(
    scope: &Scope,
    [a, b]: [Output; 2],
    flips: (bool, bool),
    dz: Output,
    names: &ProductOp,
) -> [Output; 2] {
    let product = |x, y, flip_x: bool, flip_y: bool| {
        let call = scope.op(names.op).input(x).input(y);
        call.attr(names.flips[0], flip_x).attr(names.flips[1], flip_y).output()
    };
    match flips {
        (false, false) => [product(dz, b, false, true), product(a, dz, true, false)],
        (false, true) => [product(dz, b, false, false), product(dz, a, true, false)],
        (true, false) => [product(b, dz, false, true), product(a, dz, false, false)],
        (true, true) => [product(b, dz, true, true), product(dz, a, true, true)],
    }
}
