//! Shapes: full shapes of values, and partial shapes that are known before values exist.

use crate::error::{Error, Result};
use smallvec::SmallVec;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// The largest rank of a shape.
pub const MAX_RANK: usize = 254;

/// The shape of a value. The number of elements fits `i64`.
#[derive(Eq, Default)]
pub struct Shape(SmallVec<[usize; 4]>);

/// Clone and comparison are written by hand for speed: steps copy and compare shapes at every node. Most shapes have
/// rank 0 or 1, for which calling a general memory copy costs more than copying the sizes.
impl Clone for Shape {
    #[inline]
    fn clone(&self) -> Shape {
        let inline = |dims, rank| Shape(SmallVec::from_buf_and_len(dims, rank));
        match *self.0 {
            [] => Shape::default(),
            [a] => inline([a, 0, 0, 0], 1),
            [a, b] => inline([a, b, 0, 0], 2),
            [a, b, c] => inline([a, b, c, 0], 3),
            [a, b, c, d] => inline([a, b, c, d], 4),
            ref more => Shape(SmallVec::from_slice(more)),
        }
    }
}

impl Hash for Shape {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl PartialEq for Shape {
    #[inline]
    fn eq(&self, other: &Shape) -> bool {
        self.rank() == other.rank() && self.0.iter().zip(&other.0).all(|(a, b)| a == b)
    }
}

impl Shape {
    /// Returns the shape of a scalar.
    #[inline]
    pub fn scalar() -> Shape {
        Shape::default()
    }

    /// Returns the shape with the sizes `dims`.
    ///
    /// # Errors
    /// `InvalidArgument` if the number of elements or the rank is out of range.
    pub fn new(dims: &[usize]) -> Result<Shape> {
        if dims.len() > MAX_RANK {
            crate::invalid!("Shape has {} dimensions, at most {MAX_RANK} are possible", dims.len());
        }
        let product = dims.iter().try_fold(1i64, |n, &d| n.checked_mul(i64::try_from(d).ok()?));
        match product {
            Some(_) => Ok(Shape(SmallVec::from_slice(dims))),
            None => {
                let dims: Vec<String> = dims.iter().map(usize::to_string).collect();
                crate::invalid!("Shape [{}] would have more than 2**63 - 1 elements", dims.join(","))
            }
        }
    }

    /// Like [`Shape::new`], for signed sizes as in tensors and protos; negative sizes are errors.
    pub fn from_i64(dims: &[i64]) -> Result<Shape> {
        let mut sizes = SmallVec::<[usize; 4]>::with_capacity(dims.len());
        for &d in dims {
            sizes
                .push(usize::try_from(d).map_err(|_| Error::invalid(format!("Dimension {d} must be >= 0")))?);
        }
        Shape::new(&sizes)
    }

    /// Returns the size of each axis.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Returns the number of axes.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Returns the number of elements.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.0.iter().product()
    }

    /// Returns for each axis the distance between neighbouring indices, in elements, for row-major order.
    pub fn strides(&self) -> SmallVec<[usize; 4]> {
        let mut strides = SmallVec::from_elem(1, self.rank());
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i] * self.0[i];
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> TryFrom<[usize; N]> for Shape {
    type Error = Error;
    fn try_from(dims: [usize; N]) -> Result<Shape> {
        Shape::new(&dims)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            write!(f, "{}{d}", if i == 0 { "" } else { "," })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Resolves an axis of a tensor of this rank; negative axes count from the back. Returns `None` if the axis is out of
/// range.
pub fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank_signed = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis.checked_add(rank_signed)? } else { axis };
    usize::try_from(axis).ok().filter(|&a| a < rank)
}

/// The size of an axis, or `None` if it is unknown.
pub type Dim = Option<usize>;

/// A shape that may be unknown, known in rank only, or known in some or all sizes.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct PartialShape(Option<SmallVec<[Dim; 4]>>);

impl PartialShape {
    /// Returns a shape of unknown rank.
    pub fn unknown() -> PartialShape {
        PartialShape(None)
    }

    /// Returns the shape of a scalar.
    pub fn scalar() -> PartialShape {
        PartialShape(Some(SmallVec::new()))
    }

    /// Returns a shape of known rank with these sizes.
    pub fn of_dims(dims: impl IntoIterator<Item = Dim>) -> PartialShape {
        PartialShape(Some(dims.into_iter().collect()))
    }

    /// Returns the shape of a vector.
    pub fn vector(size: Dim) -> PartialShape {
        PartialShape::of_dims([size])
    }

    /// Returns a shape of known rank with unknown sizes.
    pub fn of_rank(rank: usize) -> PartialShape {
        PartialShape(Some(SmallVec::from_elem(None, rank)))
    }

    /// Returns the shape with these sizes as in protos, where -1 means unknown.
    ///
    /// # Errors
    /// `InvalidArgument` for sizes below -1, or if the number of elements or the rank is out of range.
    pub fn from_i64(dims: &[i64]) -> Result<PartialShape> {
        if dims.len() > MAX_RANK {
            crate::invalid!("Shape has {} dimensions, at most {MAX_RANK} are possible", dims.len());
        }
        let mut known = 1i64;
        let mut out = SmallVec::with_capacity(dims.len());
        for &d in dims {
            if d < -1 {
                crate::invalid!("Dimension {d} must be >= -1");
            }
            if d > 0 {
                known = known.checked_mul(d).ok_or_else(|| {
                    Error::invalid(format!("Shape {dims:?} would have more than 2**63 - 1 elements"))
                })?;
            }
            out.push(usize::try_from(d).ok());
        }
        Ok(PartialShape(Some(out)))
    }

    /// Returns the rank, if known.
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(|d| d.len())
    }

    /// Returns the size of each axis, if the rank is known.
    pub fn dims(&self) -> Option<&[Dim]> {
        self.0.as_deref()
    }

    /// Returns the size of axis `i`; `None` if the size or the rank is unknown, or the axis does not exist.
    pub fn dim(&self, i: usize) -> Dim {
        self.0.as_ref().and_then(|d| d.get(i).copied().flatten())
    }

    /// Returns the full shape, if every size is known.
    pub fn as_shape(&self) -> Option<Shape> {
        let dims: Option<SmallVec<[usize; 4]>> = self.0.as_ref()?.iter().copied().collect();
        Shape::new(&dims?).ok()
    }

    /// Returns whether every size is known.
    pub fn is_fully_defined(&self) -> bool {
        self.0.as_ref().is_some_and(|d| d.iter().all(Option::is_some))
    }

    /// Returns the number of elements, if every size is known and the product fits `usize`.
    pub fn num_elements(&self) -> Option<usize> {
        self.0.as_ref()?.iter().try_fold(1usize, |n, d| n.checked_mul((*d)?))
    }

    /// Returns whether a value of shape `shape` is possible under this partial shape.
    pub fn accepts(&self, shape: &Shape) -> bool {
        match &self.0 {
            None => true,
            Some(dims) => {
                dims.len() == shape.rank()
                    && dims.iter().zip(shape.iter()).all(|(d, s)| d.is_none_or(|d| d == *s))
            }
        }
    }

    /// Returns whether some shape fits both partial shapes.
    pub fn is_compatible(&self, other: &PartialShape) -> bool {
        self.merge(other).is_ok()
    }

    /// Returns the partial shape with the rank and sizes that are known in `self` or `other`.
    ///
    /// # Errors
    /// `InvalidArgument` if the partial shapes contradict each other.
    pub fn merge(&self, other: &PartialShape) -> Result<PartialShape> {
        let (a, b) = match (&self.0, &other.0) {
            (None, _) => return Ok(other.clone()),
            (_, None) => return Ok(self.clone()),
            (Some(a), Some(b)) => (a, b),
        };
        if a.len() != b.len() {
            crate::invalid!(
                "Shapes must be equal rank, but are {} and {}. Shapes are {self} and {other}.",
                a.len(),
                b.len()
            );
        }
        let mut out = SmallVec::with_capacity(a.len());
        for (i, (x, y)) in a.iter().zip(b).enumerate() {
            match (x, y) {
                (Some(x), Some(y)) if x != y => crate::invalid!(
                    "Dimension {i} in both shapes must be equal, but are {x} and {y}. Shapes are {self} and {other}."
                ),
                _ => out.push(x.or(*y)),
            }
        }
        Ok(PartialShape(Some(out)))
    }

    /// Returns the shape with the given rank.
    ///
    /// # Errors
    /// `InvalidArgument` if another rank is known.
    pub fn with_rank(&self, rank: usize) -> Result<PartialShape> {
        match self.rank() {
            None => Ok(PartialShape::of_rank(rank)),
            Some(r) if r == rank => Ok(self.clone()),
            Some(r) => Err(Error::invalid(format!("Shape must be rank {rank} but is rank {r}"))),
        }
    }

    /// Returns the shape to which `a` and `b` are broadcast.
    ///
    /// # Errors
    /// `InvalidArgument` if two sizes are incompatible.
    pub fn broadcast(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
        let (Some(x), Some(y)) = (a.dims(), b.dims()) else { return Ok(PartialShape::unknown()) };
        let rank = x.len().max(y.len());
        let at = |dims: &[Dim], i: usize| {
            let pad = rank - dims.len();
            if i < pad { Some(1) } else { dims[i - pad] }
        };
        let mut out = SmallVec::with_capacity(rank);
        for i in 0..rank {
            out.push(match (at(x, i), at(y, i)) {
                (Some(1), d) | (d, Some(1)) => d,
                (Some(p), Some(q)) if p == q => Some(p),
                (Some(_), Some(_)) => {
                    crate::invalid!(
                        "Dimensions must be equal, but are incompatible for broadcasting: {a} and {b}"
                    )
                }
                (Some(p), None) | (None, Some(p)) => Some(p),
                (None, None) => None,
            });
        }
        Ok(PartialShape(Some(out)))
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> PartialShape {
        PartialShape::of_dims(shape.iter().map(|&d| Some(d)))
    }
}

impl<const N: usize> From<[Dim; N]> for PartialShape {
    fn from(dims: [Dim; N]) -> PartialShape {
        PartialShape::of_dims(dims)
    }
}

impl<const N: usize> From<[usize; N]> for PartialShape {
    fn from(dims: [usize; N]) -> PartialShape {
        PartialShape::of_dims(dims.map(Some))
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.0 else { return f.write_str("<unknown>") };
        f.write_str("[")?;
        for (i, d) in dims.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            match d {
                Some(d) => write!(f, "{comma}{d}")?,
                None => write!(f, "{comma}?")?,
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_overflow_are_refused() {
        assert!(Shape::new(&[1 << 40, 1 << 40]).is_err());
        assert!(Shape::from_i64(&[-1]).is_err());
        assert!(PartialShape::from_i64(&[1 << 40, 1 << 40]).is_err());
        assert_eq!(Shape::new(&[2, 3]).map(|s| s.num_elements()), Ok(6));
    }

    #[test]
    fn partial_shapes_merge_and_broadcast() {
        let a = PartialShape::from([None, Some(3)]);
        let b = PartialShape::from([Some(2), None]);
        assert_eq!(a.merge(&b), Ok(PartialShape::from([2, 3])));
        assert!(a.merge(&PartialShape::from([2, 4])).is_err());
        assert!(a.merge(&PartialShape::scalar()).is_err());
        let c = PartialShape::broadcast(&PartialShape::from([4, 1, 3]), &PartialShape::from([5, 1]));
        assert_eq!(c, Ok(PartialShape::from([4, 5, 3])));
        assert!(PartialShape::broadcast(&PartialShape::from([2]), &PartialShape::from([3])).is_err());
    }
}
