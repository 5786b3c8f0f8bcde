//! Tensor slices: the part of a whole tensor that a stored tensor holds or that a reader requests.

use crate::error::{Error, Result, invalid};
use crate::ordered_code;
use crate::proto::{Field, Fields, Malformed, Writer};
use graph::shape::MAX_RANK;
use graph::{Code, Shape};
use std::fmt;

/// A range of indices for each dimension of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorSlice {
    extents: Vec<Extent>,
}

/// Start and length of a range; `None` is the whole dimension.
type Extent = Option<(u64, u64)>;

impl TensorSlice {
    /// Returns the slice that covers a whole tensor of this rank.
    pub fn full(rank: usize) -> TensorSlice {
        TensorSlice { extents: vec![None; rank] }
    }

    /// Parses the text of a slice: `-` for a whole dimension or `start,length`, separated by `:`.
    pub fn parse(text: &str) -> Result<TensorSlice> {
        let mut extents = Vec::new();
        for part in text.split(':').filter(|part| !part.is_empty()) {
            if part == "-" {
                extents.push(None);
                continue;
            }
            let pair = part
                .split_once(',')
                .and_then(|(s, l)| Some((s.parse::<i64>().ok()?, l.parse::<i64>().ok()?)));
            let Some((start, length)) = pair else {
                invalid!("Expected a pair of numbers or '-' but got '{part}': string = {text}");
            };
            let (Ok(start), Ok(length @ 1..)) = (u64::try_from(start), u64::try_from(length)) else {
                invalid!(
                    "Expected non-negative start and positive length but got start = {start}, length = {length}: string = {text}"
                );
            };
            extents.push(Some((start, length)));
        }
        if extents.len() > MAX_RANK {
            invalid!("a slice of {} dimensions, at most {MAX_RANK} are possible", extents.len());
        }
        Ok(TensorSlice { extents })
    }

    /// Returns the number of dimensions.
    pub fn rank(&self) -> usize {
        self.extents.len()
    }

    /// Returns whether every dimension is written as `-`.
    pub fn is_full(&self) -> bool {
        self.extents.iter().all(Option::is_none)
    }

    /// Returns whether the slice covers a whole tensor of this shape, however its ranges are written.
    pub fn covers(&self, shape: &Shape) -> bool {
        self.rank() == shape.rank()
            && self
                .extents
                .iter()
                .zip(shape.iter())
                .all(|(extent, &size)| extent.is_none_or(|e| e == (0, size as u64)))
    }

    /// Returns the start and length of each dimension, in a tensor of this shape.
    ///
    /// # Errors
    /// `Internal` if the slice is not within the shape.
    pub fn ranges(&self, shape: &Shape) -> Result<Vec<(usize, usize)>> {
        let internal = |message: String| Error::Invalid { code: Code::Internal, message };
        if self.rank() != shape.rank() {
            return Err(internal(format!("Mismatching ranks: shape = {shape}, slice = {self}")));
        }
        let range = |(i, (extent, &size)): (usize, (&Extent, &usize))| {
            let (start, length) = extent.unwrap_or((0, size as u64));
            if start.checked_add(length).is_none_or(|end| end > size as u64) {
                return Err(internal(format!(
                    "Extent in dimension {i} out of bounds: shape = {shape}, slice = {self}"
                )));
            }
            Ok((start as usize, length as usize))
        };
        self.extents.iter().zip(shape.iter()).enumerate().map(range).collect()
    }

    /// Returns the shape of the slice of a tensor of this shape.
    pub fn shape_in(&self, shape: &Shape) -> Result<Shape> {
        let lengths: Vec<usize> = self.ranges(shape)?.into_iter().map(|(_, length)| length).collect();
        Ok(Shape::new(&lengths)?)
    }

    /// Returns the key under which the slice of the tensor `name` is stored.
    pub(crate) fn key(&self, name: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        ordered_code::put_unsigned(&mut key, 0);
        ordered_code::put_string(&mut key, name);
        ordered_code::put_unsigned(&mut key, self.rank() as u64);
        for extent in &self.extents {
            let (start, length) = extent.map_or((0, -1), |(start, length)| (start as i64, length as i64));
            ordered_code::put_signed(&mut key, start);
            ordered_code::put_signed(&mut key, length);
        }
        key
    }

    /// Writes the fields of a `TensorSliceProto`.
    pub(crate) fn write(&self, proto: &mut Writer) {
        for extent in &self.extents {
            proto.message(1, |e| {
                if let Some((start, length)) = extent {
                    e.int(1, *start as i64).varint(2, *length);
                }
            });
        }
    }

    /// Reads the fields of a `TensorSliceProto`.
    pub(crate) fn read(proto: Fields<'_>) -> Result<TensorSlice, Malformed> {
        let mut extents = Vec::new();
        for field in proto {
            let (1, extent) = field? else { continue };
            let (mut start, mut length) = (0, None);
            for field in extent.fields()? {
                match field? {
                    (1, value) => start = value.int()?,
                    (2, value) => length = Some(value.int()?),
                    _ => {}
                }
            }
            let start = u64::try_from(start).map_err(|_| Malformed)?;
            extents.push(match length {
                None => None,
                Some(length) => Some((start, u64::try_from(length).map_err(|_| Malformed)?)),
            });
        }
        if extents.len() > MAX_RANK { Err(Malformed) } else { Ok(TensorSlice { extents }) }
    }
}

impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, extent) in self.extents.iter().enumerate() {
            let colon = if i == 0 { "" } else { ":" };
            match extent {
                None => write!(f, "{colon}-")?,
                Some((start, length)) => write!(f, "{colon}{start},{length}")?,
            }
        }
        Ok(())
    }
}

/// An element of a `shape_and_slices` input: the shape of a whole tensor, and a slice of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceSpec {
    pub shape: Shape,
    pub slice: TensorSlice,
}

impl SliceSpec {
    /// Parses the dimensions of the whole tensor and the slice, separated by blanks.
    pub fn parse(text: &str) -> Result<SliceSpec> {
        let parts: Vec<&str> = text.split(' ').filter(|part| !part.is_empty()).collect();
        let (slice, sizes) = match parts.split_last() {
            Some((slice, sizes)) if !sizes.is_empty() => (slice, sizes),
            _ => invalid!("Need least two elements in shape_and_slice specification: {text}"),
        };
        let size = |part: &&str| {
            part.parse::<usize>()
                .map_err(|_| Error::invalid(format!("Non numerical dimension in shape_and_slice: {text}")))
        };
        let shape = Shape::new(&sizes.iter().map(size).collect::<Result<Vec<_>>>()?)?;
        let slice = TensorSlice::parse(slice)?;
        slice.ranges(&shape)?;
        Ok(SliceSpec { shape, slice })
    }

    /// Returns the shape of the tensor that the slice contains.
    pub fn slice_shape(&self) -> Result<Shape> {
        self.slice.shape_in(&self.shape)
    }
}

/// Writes the dimensions of a `TensorShapeProto`.
pub fn write_shape(proto: &mut Writer, shape: &Shape) {
    for &size in shape.iter() {
        proto.message(2, |dim| {
            dim.int(1, size as i64);
        });
    }
}

/// Reads a `TensorShapeProto`.
pub fn read_shape(proto: Fields<'_>) -> Result<Shape, Malformed> {
    let mut sizes = Vec::new();
    for field in proto {
        let (2, dim) = field? else { continue };
        let mut size = 0;
        for field in dim.fields()? {
            if let (1, value) = field? {
                size = value.int()?;
            }
        }
        sizes.push(size);
        if sizes.len() > MAX_RANK {
            return Err(Malformed);
        }
    }
    Shape::from_i64(&sizes).map_err(|_| Malformed)
}

/// Copies the elements that a stored slice and a requested slice have in common. Both are given by their
/// ranges in the whole tensor. `copy` gets runs of elements: offset in the stored slice, offset in the
/// requested slice, and length. Returns the number of common elements.
pub(crate) fn intersect(
    stored: &[(usize, usize)],
    wanted: &[(usize, usize)],
    mut copy: impl FnMut(usize, usize, usize),
) -> usize {
    // For each dimension, the start (in the whole tensor) and the length of the range that both slices cover.
    let mut common = Vec::with_capacity(stored.len());
    for (&(a, a_len), &(b, b_len)) in stored.iter().zip(wanted) {
        let (start, end) = (a.max(b), (a + a_len).min(b + b_len));
        if end <= start {
            return 0;
        }
        common.push((start, end - start));
    }
    let strides = |ranges: &[(usize, usize)]| {
        let mut strides = vec![1; ranges.len()];
        for i in (1..ranges.len()).rev() {
            strides[i - 1] = strides[i] * ranges[i].1;
        }
        strides
    };
    let (from, to) = (strides(stored), strides(wanted));
    // Innermost dimensions that both slices cover completely are merged with the next outer dimension, for
    // the longest possible runs.
    let mut inner = common.len();
    let mut run = 1;
    while inner > 0 {
        inner -= 1;
        run *= common[inner].1;
        let is_whole = |range: (usize, usize)| range.1 == common[inner].1;
        if !is_whole(stored[inner]) || !is_whole(wanted[inner]) {
            break;
        }
    }
    let total: usize = common.iter().map(|c| c.1).product();
    let mut at = vec![0; inner];
    let offset = |at: &[usize], strides: &[usize], ranges: &[(usize, usize)]| -> usize {
        (0..common.len())
            .map(|i| (common[i].0 - ranges[i].0 + at.get(i).copied().unwrap_or(0)) * strides[i])
            .sum()
    };
    for _ in 0..total / run {
        copy(offset(&at, &from, stored), offset(&at, &to, wanted), run);
        for i in (0..inner).rev() {
            at[i] += 1;
            if at[i] < common[i].1 {
                break;
            }
            at[i] = 0;
        }
    }
    total
}

/// Reads the slice in a field that holds a `TensorSliceProto`.
pub(crate) fn slice_field(field: Field<'_>) -> Result<TensorSlice, Malformed> {
    TensorSlice::read(field.fields()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_key_have_tensorflows_form() -> Result<()> {
        let spec = SliceSpec::parse("4 3 0,2:-")?;
        assert_eq!(spec.slice.to_string(), "0,2:-");
        assert_eq!(spec.slice_shape()?, Shape::new(&[2, 3])?);
        assert_eq!(spec.slice.key(b"w"), b"\x00w\x00\x01\x01\x02\x80\x82\x80\x7f");
        assert!(TensorSlice::parse("0,4:-")?.covers(&spec.shape));
        for wrong in ["junk", "", "4 x 0,2:-", "4 3 0,2", "4 3 2,3:-", "4 3 a:-", "4 3 0,0:-", "4 3 -1,2:-"] {
            assert!(SliceSpec::parse(wrong).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn common_ranges_are_copied_in_runs() {
        let copies = |stored: &[(usize, usize)], wanted: &[(usize, usize)]| {
            let mut runs = Vec::new();
            let total = intersect(stored, wanted, |a, b, n| runs.push((a, b, n)));
            (total, runs)
        };
        assert_eq!(copies(&[(0, 2), (0, 3)], &[(1, 3), (0, 3)]), (3, vec![(3, 0, 3)]));
        assert_eq!(copies(&[(0, 4), (0, 3)], &[(1, 2), (0, 3)]), (6, vec![(3, 0, 6)]));
        assert_eq!(copies(&[(0, 4), (0, 3)], &[(1, 2), (1, 1)]), (2, vec![(4, 0, 1), (7, 1, 1)]));
        assert_eq!(copies(&[(0, 2)], &[(2, 2)]), (0, vec![]));
        assert_eq!(copies(&[], &[]), (1, vec![(0, 0, 1)]));
    }
}
