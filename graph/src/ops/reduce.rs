//! Reductions over axes, cumulative sums and products, and indices of minima and maxima.

mod gradient;

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

const NUMBERS: &[&str] = &["keep_dims: bool = false", "T: numbertype", "Tidx: {int32, int64} = int32"];
const ORDERED: &[&str] = &[
    "keep_dims: bool = false",
    "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64, qint8, quint8, qint32, qint16, quint16}",
    "Tidx: {int32, int64} = int32",
];

const fn row(name: &'static str, attrs: &'static [&'static str], gradient: Gradient) -> OpDef {
    OpDef {
        name,
        inputs: &["input: T", "reduction_indices: Tidx"],
        outputs: &["output: T"],
        attrs,
        infer: reduced_shape,
        gradient,
        ..OpDef::NEW
    }
}

const fn logical(name: &'static str) -> OpDef {
    OpDef {
        inputs: &["input: bool", "reduction_indices: Tidx"],
        outputs: &["output: bool"],
        ..row(name, &["keep_dims: bool = false", "Tidx: {int32, int64} = int32"], Gradient::Leaf)
    }
}

const fn extreme(name: &'static str, attrs: &'static [&'static str]) -> OpDef {
    OpDef {
        name,
        inputs: &["input: T", "dimension: Tidx"],
        outputs: &["output: output_type"],
        attrs,
        infer: extreme_shape,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    }
}

const fn scan(name: &'static str, gradient: Gradient) -> OpDef {
    OpDef {
        name,
        inputs: &["x: T", "axis: Tidx"],
        outputs: &["out: T"],
        attrs: &[
            "exclusive: bool = false",
            "reverse: bool = false",
            "T: numbertype",
            "Tidx: {int32, int64} = int32",
        ],
        infer: super::unary::same_shape,
        gradient,
        ..OpDef::NEW
    }
}

pub(super) const OPS: &[OpDef] = &[
    row("Sum", NUMBERS, Gradient::Defined(gradient::sum)),
    row("Mean", NUMBERS, Gradient::Defined(gradient::mean)),
    row("Prod", NUMBERS, Gradient::Defined(gradient::prod)),
    row("Max", ORDERED, Gradient::Defined(gradient::extreme)),
    row("Min", ORDERED, Gradient::Defined(gradient::extreme)),
    row("EuclideanNorm", NUMBERS, Gradient::Defined(gradient::euclidean_norm)),
    logical("All"),
    logical("Any"),
    extreme(
        "ArgMax",
        &[
            "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64, qint8, quint8, qint32, qint16, quint16, bool}",
            "Tidx: {int16, int32, int64} = int32",
            "output_type: {int16, uint16, int32, int64} = int64",
        ],
    ),
    extreme(
        "ArgMin",
        &[
            "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64, qint8, quint8, qint32, qint16, quint16, bool}",
            "Tidx: {int32, int64} = int32",
            "output_type: {int32, int64} = int64",
        ],
    ),
    scan("Cumsum", Gradient::Defined(gradient::cumsum)),
    scan("Cumprod", Gradient::Defined(gradient::cumprod)),
    OpDef {
        attrs: &[
            "exclusive: bool = false",
            "reverse: bool = false",
            "T: {bfloat16, half, float, double}",
            "Tidx: {int32, int64} = int32",
        ],
        ..scan("CumulativeLogsumexp", Gradient::Defined(gradient::cumulative_logsumexp))
    },
];

/// Returns for each of `rank` axes whether it is reduced.
fn reduced_axes(axes: &Tensor, rank: usize) -> Result<Vec<bool>> {
    let mut reduced = vec![false; rank];
    for axis in axes.to_i64s()? {
        let at = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
        match usize::try_from(at).ok().and_then(|at| reduced.get_mut(at)) {
            Some(flag) => *flag = true,
            None => {
                crate::invalid!("Invalid reduction dimension {axis} for input with {rank} dimensions.")
            }
        }
    }
    Ok(reduced)
}

fn reduced_shape(infer: &mut Infer<'_>) -> Result<()> {
    let keep_dims = infer.attr::<bool>("keep_dims")?;
    let input = infer.input(0);
    let shape = match (input.dims(), infer.value(1)) {
        (Some(dims), Some(axes)) => {
            let reduced = reduced_axes(&axes, dims.len())?;
            let kept = dims.iter().zip(&reduced).filter_map(|(&d, &reduced)| match (reduced, keep_dims) {
                (false, _) => Some(d),
                (true, true) => Some(Some(1)),
                (true, false) => None,
            });
            PartialShape::of_dims(kept.collect::<Vec<Dim>>())
        }
        (Some(dims), None) if keep_dims => PartialShape::of_rank(dims.len()),
        (Some([]), None) => PartialShape::scalar(),
        _ => PartialShape::unknown(),
    };
    infer.set(0, shape);
    Ok(())
}

fn extreme_shape(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    let rank = dims.len() as i64;
    let Some(axis) = infer.value(1).map(|v| v.to_i64s()).transpose()?.and_then(|v| v.first().copied()) else {
        if rank > 0 {
            infer.set(0, PartialShape::of_rank(dims.len() - 1));
        }
        return Ok(());
    };
    let at = if axis < 0 { axis.saturating_add(rank) } else { axis };
    if !(0..rank).contains(&at) {
        crate::invalid!(
            "Dimension ({axis}) must be in the range [{}, {rank}), where {rank} is the number of dimensions in the input.",
            -rank
        );
    }
    let mut dims = dims.to_vec();
    dims.remove(at as usize);
    infer.set(0, PartialShape::of_dims(dims));
    Ok(())
}
