//! Conversions of shapes.

use crate::pb::{TensorShapeProto, tensor_shape_proto::Dim};
use graph::{Error, PartialShape, Result, Shape, shape::MAX_RANK};

fn proto(sizes: impl Iterator<Item = i64>) -> TensorShapeProto {
    TensorShapeProto {
        dim: sizes.map(|size| Dim { size, name: String::new() }).collect(),
        unknown_rank: false,
    }
}

/// Converts a shape to its message.
pub fn shape_to_proto(shape: &Shape) -> TensorShapeProto {
    proto(shape.iter().map(|&d| d as i64))
}

/// Converts the message of a tensor's shape.
///
/// # Errors
/// `InvalidArgument` if the rank or a dimension is unknown, or dimensions are out of range.
pub fn shape_from_proto(shape: &TensorShapeProto) -> Result<Shape> {
    if shape.unknown_rank {
        return Err(Error::invalid("the shape of a tensor's value must be known, its rank is not"));
    }
    Shape::from_i64(&sizes(shape)?)
}

/// Converts a partial shape to its message.
pub fn partial_shape_to_proto(shape: &PartialShape) -> TensorShapeProto {
    match shape.dims() {
        None => TensorShapeProto { dim: Vec::new(), unknown_rank: true },
        Some(dims) => proto(dims.iter().map(|d| d.map_or(-1, |d| d as i64))),
    }
}

/// Converts the message of a partial shape.
///
/// # Errors
/// `InvalidArgument` if dimensions are out of range, or there are dimensions although the rank is unknown.
pub fn partial_shape_from_proto(shape: &TensorShapeProto) -> Result<PartialShape> {
    if !shape.unknown_rank {
        return PartialShape::from_i64(&sizes(shape)?);
    }
    if shape.dim.is_empty() {
        Ok(PartialShape::unknown())
    } else {
        Err(Error::invalid("a shape of unknown rank must not have any dimensions set"))
    }
}

fn sizes(shape: &TensorShapeProto) -> Result<Vec<i64>> {
    if shape.dim.len() > MAX_RANK {
        return Err(Error::invalid(format!(
            "Shape has {} dimensions, at most {MAX_RANK} are possible",
            shape.dim.len()
        )));
    }
    Ok(shape.dim.iter().map(|d| d.size).collect())
}
