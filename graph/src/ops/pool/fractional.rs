//! Fractional pooling: windows of varying sizes, so that an image shrinks by a ratio that is not an integer (Graham,
//! "Fractional max-pooling", 2014).

use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::ops::window::ReadAttr;
use crate::ops::{Gradient, OpDef};
use crate::shape::PartialShape;

const ATTRS: &[&str] = &[
    "pooling_ratio: list(float) >= 4",
    "pseudo_random: bool = false",
    "overlapping: bool = false",
    "deterministic: bool = false",
    "seed: int = 0",
    "seed2: int = 0",
    "T: {float, double, int32, int64}",
];

const FORWARD: OpDef = OpDef {
    inputs: &["value: T"],
    outputs: &["output: T", "row_pooling_sequence: int64", "col_pooling_sequence: int64"],
    attrs: ATTRS,
    infer: infer_forward,
    ..OpDef::NEW
};

pub(super) const MAX: OpDef = OpDef {
    name: "FractionalMaxPool",
    gradient: Gradient::Defined(|s, f, dy| {
        let Some(dy) = dy[0] else { return Ok(vec![None]) };
        let call = s.op("FractionalMaxPoolGrad").input(f.input(0)).input(f.output(0)).input(dy);
        let call = call.input(f.output(1)).input(f.output(2));
        Ok(vec![Some(call.attr("overlapping", f.attr::<bool>("overlapping")?).output())])
    }),
    ..FORWARD
};

pub(super) const MAX_GRAD: OpDef = OpDef {
    name: "FractionalMaxPoolGrad",
    inputs: &[
        "orig_input: T",
        "orig_output: T",
        "out_backprop: T",
        "row_pooling_sequence: int64",
        "col_pooling_sequence: int64",
    ],
    outputs: &["output: T"],
    attrs: &["overlapping: bool = false", "T: {float, double, int32, int64}"],
    infer: |infer| {
        let shape = infer.input_of_rank(0, 4)?;
        infer.set(0, shape);
        Ok(())
    },
    ..OpDef::NEW
};

pub(super) const MEAN: OpDef =
    OpDef { name: "FractionalAvgPool", gradient: Gradient::Defined(mean_grad), ..FORWARD };

pub(super) const MEAN_GRAD: OpDef = OpDef {
    name: "FractionalAvgPoolGrad",
    inputs: &[
        "orig_input_tensor_shape: int64",
        "out_backprop: T",
        "row_pooling_sequence: int64",
        "col_pooling_sequence: int64",
    ],
    outputs: &["output: T"],
    attrs: &["overlapping: bool = false", "T: {float, double, int32, int64}"],
    infer: |infer| {
        let shape = infer.value_as_shape(0)?.with_rank(4)?;
        infer.set(0, shape);
        Ok(())
    },
    ..OpDef::NEW
};

/// The attributes of a fractional pooling. The window sequences are random, yet the op is not declared stateful,
/// because TensorFlow's op table does not declare it so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fractional {
    /// The input's size divided by the output's, for rows and columns: the attribute `pooling_ratio`.
    pub ratios: [f32; 2],
    pub pseudo_random: bool,
    pub overlapping: bool,
    pub deterministic: bool,
    pub seeds: [i64; 2],
}

impl Fractional {
    /// Parses the attributes of a node.
    ///
    /// # Errors
    /// `InvalidArgument` for ratios below 1, `Unimplemented` for ratios other than 1 on batch and channels.
    pub fn of(node: &impl ReadAttr) -> Result<Fractional> {
        let ratios: Vec<f32> = node.read_attr("pooling_ratio")?;
        let &[batch, rows, columns, channels] = ratios.as_slice() else {
            crate::invalid!("pooling_ratio field must specify 4 dimensions");
        };
        if let Some(small) = ratios.iter().find(|r| !(**r >= 1.0 && r.is_finite())) {
            crate::invalid!("pooling_ratio cannot be smaller than 1, got: {small}");
        }
        if batch != 1.0 || channels != 1.0 {
            return Err(Error::unimplemented(
                "Fractional pooling is not yet supported on the batch nor channel dimension.",
            ));
        }
        let deterministic: bool = node.read_attr("deterministic")?;
        let seeds = [node.read_attr("seed")?, node.read_attr("seed2")?];
        if !deterministic && seeds != [0, 0] {
            crate::invalid!("Both seed and seed2 should be 0 if deterministic is false.");
        }
        Ok(Fractional {
            ratios: [rows, columns],
            pseudo_random: node.read_attr("pseudo_random")?,
            overlapping: node.read_attr("overlapping")?,
            deterministic,
            seeds,
        })
    }

    /// Returns the number of rows (axis 0) or columns (axis 1) of the output.
    pub fn output_size(&self, input: usize, axis: usize) -> usize {
        (input as f32 / self.ratios[axis]).floor() as usize
    }
}

fn infer_forward(infer: &mut Infer<'_>) -> Result<()> {
    let attrs = Fractional::of(infer)?;
    let x = infer.input_of_rank(0, 4)?;
    let [rows, columns] = [0, 1].map(|i| x.dim(i + 1).map(|size| attrs.output_size(size, i)));
    infer.set(0, [x.dim(0), rows, columns, x.dim(3)]);
    infer.set(1, PartialShape::vector(rows.map(|r| r + 1)));
    infer.set(2, PartialShape::vector(columns.map(|c| c + 1)));
    Ok(())
}

fn mean_grad(s: &Scope, f: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None]) };
    let shape = s.op("Shape").input(f.input(0)).attr("out_type", crate::DType::Int64).output();
    let call = s.op("FractionalAvgPoolGrad").input(shape).input(dy).input(f.output(1)).input(f.output(2));
    Ok(vec![Some(call.attr("overlapping", f.attr::<bool>("overlapping")?).output())])
}
