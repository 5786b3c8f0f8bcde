//! Windows that slide over the spatial axes of images and volumes: data formats, padding, output sizes. Convolution
//! and pooling share them, in shape inference and in kernels.

use crate::attr::FromAttr;
use crate::error::{Error, Result};
use crate::shape::Dim;
use std::fmt;

/// The order of the axes of a batch of images, or of volumes, which have an additional axis (planes) before the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataFormat {
    /// Channels last; `NDHWC` for volumes.
    Nhwc,
    /// Channels first; `NCDHW` for volumes.
    Nchw,
}

impl DataFormat {
    /// Parses the data format of images; other formats are `Unimplemented`.
    pub fn parse(name: &str) -> Result<DataFormat> {
        match name {
            "NHWC" => Ok(DataFormat::Nhwc),
            "NCHW" => Ok(DataFormat::Nchw),
            other => {
                Err(Error::unimplemented(format!("data format {other} is not there, only NHWC and NCHW")))
            }
        }
    }

    /// Parses the data format of volumes, which have three spatial axes.
    pub fn parse_volumes(name: &str) -> Result<DataFormat> {
        match name {
            "NDHWC" => Ok(DataFormat::Nhwc),
            "NCDHW" => Ok(DataFormat::Nchw),
            other => {
                Err(Error::unimplemented(format!("data format {other} is not there, only NDHWC and NCDHW")))
            }
        }
    }

    /// Returns the channel axis of a tensor of rank 4.
    pub fn channel_axis(self) -> usize {
        match self {
            DataFormat::Nhwc => 3,
            DataFormat::Nchw => 1,
        }
    }

    /// Returns the axes of rows and of columns.
    pub fn spatial_axes(self) -> [usize; 2] {
        match self {
            DataFormat::Nhwc => [1, 2],
            DataFormat::Nchw => [2, 3],
        }
    }

    /// Converts values in the order of the format to channels last: `[batch, rows, columns, channels]` for images,
    /// `[batch, planes, rows, columns, channels]` for volumes.
    pub fn to_nhwc<T: Copy, const N: usize>(self, mut v: [T; N]) -> [T; N] {
        if self == DataFormat::Nchw {
            v[1..].rotate_left(1);
        }
        v
    }

    /// Converts values in channels-last order to the order of the format.
    pub fn of_nhwc<T: Copy, const N: usize>(self, mut v: [T; N]) -> [T; N] {
        if self == DataFormat::Nchw {
            v[1..].rotate_right(1);
        }
        v
    }
}

impl fmt::Display for DataFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DataFormat::Nhwc => "NHWC",
            DataFormat::Nchw => "NCHW",
        })
    }
}

/// The padding around an image over which a window slides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Padding that gives `ceil(input / stride)` outputs; if its size is odd, the extra element is added after the
    /// data.
    Same,
    Valid,
    /// Padding `[before, after]` in elements, for rows and for columns.
    Explicit([[usize; 2]; 2]),
}

impl Padding {
    /// Parses the attributes `padding` and, for the value `EXPLICIT`, `explicit_paddings`: two numbers per axis, in the
    /// order of the data format.
    ///
    /// # Errors
    /// `InvalidArgument` for other values of `padding` and malformed paddings.
    pub fn parse(kind: &str, explicit: &[i64], format: DataFormat) -> Result<Padding> {
        if kind != "EXPLICIT" && !explicit.is_empty() {
            crate::invalid!(
                "explicit_paddings attribute must be empty if the padding attribute is not EXPLICIT"
            );
        }
        match kind {
            "SAME" => Ok(Padding::Same),
            "VALID" => Ok(Padding::Valid),
            "EXPLICIT" => {
                let &[n0, n1, a0, a1, b0, b1, c0, c1] = explicit else {
                    crate::invalid!(
                        "explicit_paddings attribute must contain 8 values, but got: {}",
                        explicit.len()
                    );
                };
                let [n, h, w, c] = format.to_nhwc([[n0, n1], [a0, a1], [b0, b1], [c0, c1]]);
                if n != [0, 0] || c != [0, 0] {
                    crate::invalid!(
                        "Nonzero explicit padding in the batch or depth dimensions is not supported"
                    );
                }
                let size = |v: i64| {
                    usize::try_from(v).ok().filter(|&v| v <= i32::MAX as usize).ok_or_else(|| {
                        Error::invalid("All elements of explicit_paddings must be nonnegative")
                    })
                };
                Ok(Padding::Explicit([[size(h[0])?, size(h[1])?], [size(w[0])?, size(w[1])?]]))
            }
            other => Err(Error::invalid(format!("unknown padding '{other}'"))),
        }
    }
}

/// A window that slides along one spatial axis: the sizes of the axis and of the window, and the number of window
/// positions (`output`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub input: usize,
    pub filter: usize,
    pub stride: usize,
    pub dilation: usize,
    pub output: usize,
    pub pad_before: usize,
    /// The number of input elements before the first window, which no window covers; 0 if there is padding.
    pub skip_before: usize,
}

impl Window {
    /// Computes the window along an axis of `input` elements; `axis` (0 rows, 1 columns) selects the explicit padding. An
    /// empty window has a position before each element and one at the end.
    ///
    /// # Errors
    /// `InvalidArgument` if the window does not fit once, or sizes overflow.
    pub fn new(
        input: usize,
        filter: usize,
        stride: usize,
        dilation: usize,
        padding: Padding,
        axis: usize,
    ) -> Result<Window> {
        let overflow = || Error::invalid("a window's size is out of range");
        let signed = |v: usize| i64::try_from(v).ok().filter(|&v| v <= i64::MAX / 8).ok_or_else(overflow);
        if stride == 0 || dilation == 0 {
            crate::invalid!("strides and dilations must be > 0");
        }
        let (i, s) = (signed(input)?, signed(stride)?);
        let reach = (signed(filter)? - 1).checked_mul(signed(dilation)?).ok_or_else(overflow)?;
        let effective = reach.checked_add(1).filter(|&e| e <= i64::MAX / 8).ok_or_else(overflow)?;
        let (output, before) = match padding {
            Padding::Valid => ((i - effective + s) / s, 0),
            Padding::Explicit(pads) => {
                let [before, after] = pads[axis];
                let padded = i + signed(before)? + signed(after)?;
                ((padded - effective + s) / s, signed(before)?)
            }
            Padding::Same => {
                let output = (i + s - 1) / s;
                let last = (output - 1).max(0).checked_mul(s).ok_or_else(overflow)?;
                (output, (last + effective - i).max(0) / 2)
            }
        };
        if output < 0 {
            crate::invalid!(
                "Computed output size would be negative: {output} [input_size: {input}, effective_filter_size: \
                 {effective}, stride: {stride}]"
            );
        }
        let size = |v: i64| usize::try_from(v).map_err(|_| overflow());
        Ok(Window {
            input,
            filter,
            stride,
            dilation,
            output: size(output)?,
            pad_before: size(before)?,
            skip_before: 0,
        })
    }

    /// Returns the window moved so that uncovered input elements are divided between both ends of the axis, like
    /// TensorFlow's patches of volumes with SAME padding.
    pub fn centred(self) -> Window {
        let spanned = self.output.saturating_sub(1).saturating_mul(self.stride).saturating_add(self.filter);
        Window { skip_before: self.input.saturating_sub(spanned) / 2, ..self }
    }

    /// Returns the input position under tap `tap` of the window at position `output`; `None` if the tap is in the
    /// padding.
    #[inline]
    pub fn at(&self, output: usize, tap: usize) -> Option<usize> {
        let position =
            (output * self.stride + tap * self.dilation + self.skip_before).checked_sub(self.pad_before)?;
        if position < self.input { Some(position) } else { None }
    }

    /// Returns the input positions under the window at position `output`, without positions in the padding; the window
    /// must not be dilated.
    #[inline]
    pub fn range(&self, output: usize) -> std::ops::Range<usize> {
        let start = output * self.stride + self.skip_before;
        let end = (start + self.filter).saturating_sub(self.pad_before).min(self.input);
        start.saturating_sub(self.pad_before).min(end)..end
    }

    /// Returns the output size, if the input and filter sizes are known.
    ///
    /// # Errors
    /// The errors of [`Window::new`].
    pub fn output_dim(
        input: Dim,
        filter: Dim,
        stride: usize,
        dilation: usize,
        padding: Padding,
        axis: usize,
    ) -> Result<Dim> {
        match (input, filter) {
            (Some(i), Some(f)) => Ok(Some(Window::new(i, f, stride, dilation, padding, axis)?.output)),
            (Some(i), None) if padding == Padding::Same => {
                Ok(Some(Window::new(i, 1, stride, 1, padding, axis)?.output))
            }
            _ => Ok(None),
        }
    }
}

/// Parses a list of positive integers in the order of the format, and returns it with the channels last.
pub(super) fn positive<const N: usize>(
    values: &[i64],
    format: DataFormat,
    what: &str,
    positive: &str,
) -> Result<[usize; N]> {
    if values.len() != N {
        crate::invalid!("{what} field must specify {N} dimensions");
    }
    let mut sizes = [0; N];
    for (size, &v) in sizes.iter_mut().zip(values) {
        *size = usize::try_from(v)
            .ok()
            .filter(|&v| v > 0 && v <= i32::MAX as usize)
            .ok_or_else(|| Error::invalid(positive))?;
    }
    Ok(format.to_nhwc(sizes))
}

/// A node whose attributes can be read: a node of a graph, or a node during shape inference.
pub trait ReadAttr {
    /// Reads an attribute, or its default.
    fn read_attr<T: FromAttr>(&self, name: &str) -> Result<T>;
}

impl ReadAttr for crate::node::Node {
    fn read_attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.attr(name)
    }
}

impl ReadAttr for crate::infer::Infer<'_> {
    fn read_attr<T: FromAttr>(&self, name: &str) -> Result<T> {
        self.attr(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_sizes() -> Result<()> {
        let w = |i, f, s, d, p| Window::new(i, f, s, d, p, 0).map(|w| (w.output, w.pad_before));
        assert_eq!(w(5, 3, 2, 1, Padding::Same)?, (3, 1));
        assert_eq!(w(6, 3, 2, 1, Padding::Same)?, (3, 0));
        assert_eq!(w(6, 3, 2, 1, Padding::Valid)?, (2, 0));
        assert_eq!(w(6, 3, 1, 2, Padding::Valid)?, (2, 0));
        assert_eq!(w(6, 3, 2, 1, Padding::Explicit([[2, 1], [0, 0]]))?, (4, 2));
        assert_eq!(w(0, 3, 1, 1, Padding::Same)?, (0, 1));
        assert_eq!(w(2, 3, 1, 1, Padding::Valid)?, (0, 0));
        assert_eq!(w(6, 0, 1, 1, Padding::Valid)?, (7, 0));
        assert!(w(1, 3, 1, 1, Padding::Valid).is_err());
        assert!(w(usize::MAX, 3, 1, 1, Padding::Same).is_err());
        assert!(w(9, 1 << 40, 1, 1 << 40, Padding::Same).is_err());
        Ok(())
    }

    #[test]
    fn positions() -> Result<()> {
        let w = Window::new(5, 3, 2, 1, Padding::Same, 0)?;
        assert_eq!([w.at(0, 0), w.at(0, 1), w.at(2, 2)], [None, Some(0), None]);
        assert_eq!([w.range(0), w.range(1), w.range(2)], [0..2, 1..4, 3..5]);
        let beyond = Window::new(1, 1, 1, 1, Padding::Explicit([[0, 3], [0, 0]]), 0)?;
        assert!(beyond.range(3).is_empty());
        Ok(())
    }

    #[test]
    fn paddings() {
        assert_eq!(
            Padding::parse("EXPLICIT", &[0, 0, 0, 0, 1, 2, 3, 4], DataFormat::Nchw),
            Ok(Padding::Explicit([[1, 2], [3, 4]]))
        );
        assert!(Padding::parse("EXPLICIT", &[1, 0, 0, 0, 0, 0, 0, 0], DataFormat::Nhwc).is_err());
        assert!(Padding::parse("EXPLICIT", &[0, 0, -1, 0, 0, 0, 0, 0], DataFormat::Nhwc).is_err());
        assert!(Padding::parse("SAME", &[0], DataFormat::Nhwc).is_err());
    }
}
