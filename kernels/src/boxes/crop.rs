//! `CropAndResize` and its gradients with respect to the images and to the boxes.

use crate::numeric::scalar::Real;
use crate::numeric::threads::for_rows;
use crate::numeric::widen::Float;
use crate::plan::boxes::{CropMethod, crop_size, grad_crop, image_dims, image_size, images_of};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Element, Shape, Tensor};
use num_traits::{AsPrimitive, Zero as _};

/// The boxes to crop, with the index of the image that each box belongs to.
pub(super) struct Crops<'a> {
    boxes: &'a [[f32; 4]],
    images: Vec<usize>,
    /// Rows and columns of an image.
    image: [usize; 2],
    /// Rows and columns of a crop.
    crop: [usize; 2],
    channels: usize,
    method: CropMethod,
}

/// A pixel of a crop that samples a position inside the image.
pub(super) struct Sample {
    column: usize,
    /// The index of the pixel's first channel in the row of the crop.
    at: usize,
    /// The offsets of the image pixels around the sampled position: top left, top right, bottom left, bottom right;
    /// with [`CropMethod::Nearest`], four times the offset of the nearest pixel.
    corners: [usize; 4],
    /// The distance of the sampled position from the top left pixel in rows (`down`) and columns (`across`).
    down: f32,
    across: f32,
}

impl Sample {
    /// Returns the weights of the pixels at `corners` in bilinear interpolation.
    fn weights(&self) -> [f32; 4] {
        let Sample { down, across, .. } = *self;
        [(1.0 - down) * (1.0 - across), (1.0 - down) * across, down * (1.0 - across), down * across]
    }
}

impl<'a> Crops<'a> {
    fn new(
        boxes: &'a Tensor,
        index: &Tensor,
        dims @ [_, rows, columns, channels]: [usize; 4],
        crop: [usize; 2],
        method: CropMethod,
    ) -> Result<Crops<'a>> {
        let images = images_of(boxes.shape(), index, dims, crop)?;
        let (boxes, _) = boxes.values::<f32>()?.as_chunks::<4>();
        if boxes.as_flattened().iter().any(|side| !side.is_finite()) {
            device::invalid!("Boxes contains at least one element that is not finite");
        }
        Ok(Crops { boxes, images, image: [rows, columns], crop, channels, method })
    }

    /// Returns the coordinate on axis `axis` of the image that position `i` of a crop samples; `None` outside the
    /// image.
    fn coordinate(&self, number: usize, axis: usize, i: usize) -> Option<f32> {
        let (start, end) = (self.boxes[number][axis], self.boxes[number][axis + 2]);
        let last = (self.image[axis] - 1) as f32;
        let at = match self.crop[axis] {
            1 => 0.5 * (start + end) * last,
            size => start * last + i as f32 * ((end - start) * last / (size - 1) as f32),
        };
        (at >= 0.0 && at <= last).then_some(at)
    }

    /// Returns the index of the first channel of a pixel among the elements of the batch of images.
    fn pixel(&self, image: usize, y: usize, x: usize) -> usize {
        ((image * self.image[0] + y) * self.image[1] + x) * self.channels
    }

    /// Returns the number of elements in a row of a crop.
    fn row_len(&self) -> usize {
        self.crop[1] * self.channels
    }

    fn crop_len(&self) -> usize {
        self.crop[0] * self.row_len()
    }

    /// Calls `visit(row, samples)` for each row of crop `number`; `samples` are the row's pixels that sample positions
    /// inside the image.
    fn for_each_row(&self, number: usize, visit: &mut dyn FnMut(usize, &[Sample])) {
        let image = self.images[number];
        let mut samples = Vec::with_capacity(self.crop[1]);
        for i in 0..self.crop[0] {
            let Some(y) = self.coordinate(number, 0, i) else { continue };
            samples.clear();
            for j in 0..self.crop[1] {
                let Some(x) = self.coordinate(number, 1, j) else { continue };
                let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
                let corners = match self.method {
                    CropMethod::Nearest => [self.pixel(image, y.round() as usize, x.round() as usize); 4],
                    CropMethod::Bilinear => [(top, left), (top, right), (bottom, left), (bottom, right)]
                        .map(|(y, x)| self.pixel(image, y, x)),
                };
                samples.push(Sample { column: j, at: j * self.channels, corners, down, across });
            }
            visit(i, &samples);
        }
    }

    /// Adds the contribution of a crop's pixel to the gradient of the box's sides. `places` is the pixel's row and
    /// column in the crop; `slopes` is the derivative of the loss by the sampled row and by the sampled column.
    fn add_to_sides(&self, sides: &mut [f32], places: [usize; 2], slopes: [f32; 2]) {
        for (axis, (place, slope)) in places.into_iter().zip(slopes).enumerate() {
            let last = (self.image[axis] - 1) as f32;
            // The derivative of the sampled coordinate with respect to the end of the box.
            let end = match self.crop[axis] {
                1 => 0.5 * last,
                size => place as f32 * (last / (size - 1) as f32),
            };
            sides[axis] += slope * (last - end);
            sides[axis + 2] += slope * end;
        }
    }
}

/// Returns `at` rounded down, `at` rounded up, and the distance of `at` from its value rounded down.
fn around(at: f32) -> (usize, usize, f32) {
    (at.floor() as usize, at.ceil() as usize, at - at.floor())
}

/// A function that writes the crops of an image; the last argument is the value of pixels outside the image.
type WriteCrops = fn(&Crops<'_>, &Tensor, &mut Tensor, f32) -> Result<()>;

/// `CropAndResize`: outputs the crops; pixels outside the image get the value `outside`.
pub(super) fn forward(
    ctx: &mut KernelContext<'_>,
    method: CropMethod,
    outside: f32,
    write: WriteCrops,
) -> Result<()> {
    let image = ctx.input(0)?;
    let (size, dims) = (crop_size(ctx)?, image_dims(image.shape())?);
    let crops = Crops::new(ctx.input(1)?, ctx.input(2)?, dims, size, method)?;
    let shape = Shape::new(&[crops.boxes.len(), crops.crop[0], crops.crop[1], crops.channels])?;
    let mut out = ctx.allocate(DType::Float, shape)?;
    if out.num_elements() > 0 {
        write(&crops, image, &mut out, outside)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Writes the crops of an image with elements of type `T`.
pub(super) fn write_crops<T: Element + AsPrimitive<f32>>(
    crops: &Crops<'_>,
    image: &Tensor,
    out: &mut Tensor,
    outside: f32,
) -> Result<()> {
    let (values, row_len) = (image.values::<T>()?, crops.row_len());
    for_rows(out.values_mut::<f32>()?, crops.crop_len(), |first, parts| {
        for (i, out) in parts.chunks_exact_mut(crops.crop_len()).enumerate() {
            out.fill(outside);
            crops.for_each_row(first + i, &mut |row, samples| {
                let out = &mut out[row * row_len..][..row_len];
                match crops.method {
                    CropMethod::Nearest => copy_nearest(crops.channels, values, samples, out),
                    CropMethod::Bilinear => interpolate(crops.channels, values, samples, out),
                }
            });
        }
    });
    Ok(())
}

fn copy_nearest<T: AsPrimitive<f32>>(channels: usize, values: &[T], samples: &[Sample], out: &mut [f32]) {
    for sample in samples {
        let out = &mut out[sample.at..][..channels];
        out.iter_mut().zip(&values[sample.corners[0]..]).for_each(|(o, v)| *o = v.as_());
    }
}

fn interpolate<T: AsPrimitive<f32>>(channels: usize, values: &[T], samples: &[Sample], out: &mut [f32]) {
    for &Sample { at, corners, down, across, .. } in samples {
        let [a, b, c, d] = corners.map(|corner| &values[corner..][..channels]);
        for (k, o) in out[at..][..channels].iter_mut().enumerate() {
            let [a, b, c, d] = [a[k].as_(), b[k].as_(), c[k].as_(), d[k].as_()];
            let (above, below) = (a + (b - a) * across, c + (d - c) * across);
            *o = above + (below - above) * down;
        }
    }
}

/// A function that writes the gradient of the images, given the gradient of the crops.
type WriteImageGradient = fn(&Crops<'_>, &[f32], &mut Tensor) -> Result<()>;

/// `CropAndResizeGradImage`: adds each crop's gradient to the image pixels that the crop sampled.
pub(super) fn image_gradient(
    ctx: &mut KernelContext<'_>,
    method: CropMethod,
    dtype: DType,
    write: WriteImageGradient,
) -> Result<()> {
    let (grads, boxes, index) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let shape = image_size(ctx)?;
    let dims = [shape[0], shape[1], shape[2], shape[3]];
    let crop = grad_crop(grads.shape(), dims[3], boxes.shape())?;
    let crops = Crops::new(boxes, index, dims, crop, method)?;
    let mut out = ctx.allocate(dtype, shape)?;
    write(&crops, grads.values::<f32>()?, &mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Writes the gradient of an image with elements of type `T`.
pub(super) fn write_image_gradient<T: Float>(
    crops: &Crops<'_>,
    grads: &[f32],
    out: &mut Tensor,
) -> Result<()> {
    let mut sums = vec![T::Wide::zero(); out.num_elements()];
    add_to_image(crops, grads, &mut sums);
    out.values_mut::<T>()?.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    Ok(())
}

fn add_to_image<W: Real>(crops: &Crops<'_>, grads: &[f32], sums: &mut [W]) {
    let channels = crops.channels;
    let mut add = |corner: usize, grads: &[f32], weight: f32| {
        for (s, g) in sums[corner..][..channels].iter_mut().zip(grads) {
            *s += W::of(f64::from(g * weight));
        }
    };
    for number in 0..crops.boxes.len() {
        let grads = &grads[number * crops.crop_len()..][..crops.crop_len()];
        crops.for_each_row(number, &mut |row, samples| {
            for sample in samples {
                let grads = &grads[row * crops.row_len() + sample.at..][..channels];
                match crops.method {
                    CropMethod::Nearest => add(sample.corners[0], grads, 1.0),
                    CropMethod::Bilinear => {
                        let corners = sample.corners.into_iter().zip(sample.weights());
                        corners.for_each(|(corner, weight)| add(corner, grads, weight));
                    }
                }
            }
        });
    }
}

/// A function that adds to the gradient of the boxes, given the images and the gradient of the crops.
type AddToBoxes = fn(&Crops<'_>, &Tensor, &[f32], &mut [f32]) -> Result<()>;

/// `CropAndResizeGradBoxes`: outputs the derivative of the loss with respect to the four sides of each box.
pub(super) fn box_gradient(ctx: &mut KernelContext<'_>, add_to_boxes: AddToBoxes) -> Result<()> {
    let (grads, image, boxes, index) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    let dims = image_dims(image.shape())?;
    let crop = grad_crop(grads.shape(), dims[3], boxes.shape())?;
    let crops = Crops::new(boxes, index, dims, crop, CropMethod::Bilinear)?;
    let mut out = Tensor::zeros(DType::Float, Shape::new(&[boxes.shape()[0], 4])?)?;
    add_to_boxes(&crops, image, grads.values::<f32>()?, out.values_mut::<f32>()?)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Adds to the gradient of boxes in an image with elements of type `T`.
pub(super) fn add_to_boxes<T: Element + AsPrimitive<f32>>(
    crops: &Crops<'_>,
    image: &Tensor,
    grads: &[f32],
    out: &mut [f32],
) -> Result<()> {
    let values = image.values::<T>()?;
    for (number, sides) in out.chunks_exact_mut(4).enumerate() {
        let grads = &grads[number * crops.crop_len()..][..crops.crop_len()];
        crops.for_each_row(number, &mut |row, samples| {
            let grads = &grads[row * crops.row_len()..][..crops.row_len()];
            for sample in samples {
                let &Sample { at, corners, down, across, .. } = sample;
                let (mut by_row, mut by_column) = (0.0, 0.0);
                for c in 0..crops.channels {
                    let [tl, tr, bl, br] = corners.map(|at| -> f32 { values[at + c].as_() });
                    by_row += grads[at + c] * ((1.0 - across) * (bl - tl) + across * (br - tr));
                    by_column += grads[at + c] * ((1.0 - down) * (tr - tl) + down * (br - bl));
                }
                crops.add_to_sides(sides, [row, sample.column], [by_row, by_column]);
            }
        });
    }
    Ok(())
}
