//! `CropAndResize` and its gradients with respect to the images and to the boxes.

use crate::numeric::scalar::Real as _;
use crate::numeric::threads::for_rows;
use crate::numeric::widen::Float;
use crate::plan::boxes::{Method, crop_size, grad_crop, image_dims, image_size, images_of};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Element, Shape, Tensor};
use num_traits::{AsPrimitive, Zero as _};

/// Boxes to crop, each with the image it belongs to.
struct Crops<'a> {
    boxes: &'a [[f32; 4]],
    images: Vec<usize>,
    /// Rows and columns of an image.
    image: [usize; 2],
    /// Rows and columns of a crop.
    crop: [usize; 2],
    channels: usize,
}

impl<'a> Crops<'a> {
    fn new(
        boxes: &'a Tensor,
        index: &Tensor,
        dims @ [_, rows, columns, channels]: [usize; 4],
        crop: [usize; 2],
    ) -> Result<Crops<'a>> {
        let images = images_of(boxes.shape(), index, dims, crop)?;
        let (boxes, _) = boxes.values::<f32>()?.as_chunks::<4>();
        if boxes.as_flattened().iter().any(|side| !side.is_finite()) {
            device::invalid!("Boxes contains at least one element that is not finite");
        }
        Ok(Crops { boxes, images, image: [rows, columns], crop, channels })
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

    /// Returns the offset of the first element of a pixel.
    fn pixel(&self, image: usize, y: usize, x: usize) -> usize {
        ((image * self.image[0] + y) * self.image[1] + x) * self.channels
    }

    fn crop_len(&self) -> usize {
        self.crop[0] * self.crop[1] * self.channels
    }

    /// Calls `visit(offset in the crop, [row, column] of the crop, y, x)` for the pixels of a crop whose image
    /// coordinates `y`, `x` lie inside the image.
    fn for_each_pixel(&self, number: usize, mut visit: impl FnMut(usize, [usize; 2], f32, f32)) {
        for i in 0..self.crop[0] {
            let Some(y) = self.coordinate(number, 0, i) else { continue };
            for j in 0..self.crop[1] {
                let Some(x) = self.coordinate(number, 1, j) else { continue };
                visit((i * self.crop[1] + j) * self.channels, [i, j], y, x);
            }
        }
    }
}

/// Returns the whole coordinates at or before and at or after `at`, and the distance from the first to `at`.
fn around(at: f32) -> (usize, usize, f32) {
    (at.floor() as usize, at.ceil() as usize, at - at.floor())
}

/// `CropAndResize`: pixels outside the image get the value `outside`.
pub(super) fn forward<T>(ctx: &mut KernelContext<'_>, method: Method, outside: f32) -> Result<()>
where
    T: Element + AsPrimitive<f32>,
{
    let image = ctx.input(0)?;
    let (size, dims) = (crop_size(ctx)?, image_dims(image.shape())?);
    let crops = Crops::new(ctx.input(1)?, ctx.input(2)?, dims, size)?;
    let shape = Shape::new(&[crops.boxes.len(), crops.crop[0], crops.crop[1], crops.channels])?;
    let mut out = ctx.allocate(DType::Float, shape)?;
    if out.num_elements() > 0 {
        let (values, channels) = (image.values::<T>()?, crops.channels);
        for_rows(out.values_mut::<f32>()?, crops.crop_len(), |first, parts| {
            for (i, out) in parts.chunks_exact_mut(crops.crop_len()).enumerate() {
                let number = first + i;
                let image = crops.images[number];
                out.fill(outside);
                crops.for_each_pixel(number, |at, _, y, x| {
                    let out = &mut out[at..at + channels];
                    if method == Method::Nearest {
                        let from = &values[crops.pixel(image, y.round() as usize, x.round() as usize)..];
                        out.iter_mut().zip(from).for_each(|(o, v)| *o = v.as_());
                        return;
                    }
                    let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
                    let corner = |y, x| &values[crops.pixel(image, y, x)..][..channels];
                    let [a, b, c, d] =
                        [corner(top, left), corner(top, right), corner(bottom, left), corner(bottom, right)];
                    for (k, o) in out.iter_mut().enumerate() {
                        let [a, b, c, d] = [a[k].as_(), b[k].as_(), c[k].as_(), d[k].as_()];
                        let (above, below) = (a + (b - a) * across, c + (d - c) * across);
                        *o = above + (below - above) * down;
                    }
                });
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

/// `CropAndResizeGradImage`: adds each crop's gradient to the image pixels that the crop sampled.
pub(super) fn image_gradient<T: Float>(ctx: &mut KernelContext<'_>, method: Method) -> Result<()> {
    let (grads, boxes, index) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let shape = image_size(ctx)?;
    let dims = [shape[0], shape[1], shape[2], shape[3]];
    let crop = grad_crop(grads.shape(), dims[3], boxes.shape())?;
    let crops = Crops::new(boxes, index, dims, crop)?;
    let mut out = ctx.allocate(T::DTYPE, shape.clone())?;
    let values = grads.values::<f32>()?;
    let mut sums = vec![T::Wide::zero(); shape.num_elements()];
    let channels = crops.channels;
    for number in 0..crops.boxes.len() {
        let (image, grads) = (crops.images[number], &values[number * crops.crop_len()..]);
        crops.for_each_pixel(number, |at, _, y, x| {
            let mut add = |y: usize, x: usize, weight: f32| {
                let place = &mut sums[crops.pixel(image, y, x)..][..channels];
                for (s, g) in place.iter_mut().zip(&grads[at..]) {
                    *s += T::Wide::of(f64::from(g * weight));
                }
            };
            if method == Method::Nearest {
                return add(y.round() as usize, x.round() as usize, 1.0);
            }
            let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
            add(top, left, (1.0 - down) * (1.0 - across));
            add(top, right, (1.0 - down) * across);
            add(bottom, left, down * (1.0 - across));
            add(bottom, right, down * across);
        });
    }
    out.values_mut::<T>()?.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    ctx.set_output(0, out);
    Ok(())
}

/// `CropAndResizeGradBoxes`: how the loss changes with the four sides of each box.
pub(super) fn box_gradient<T>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    T: Element + AsPrimitive<f32>,
{
    let (grads, image, boxes, index) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    let dims = image_dims(image.shape())?;
    let crop = grad_crop(grads.shape(), dims[3], boxes.shape())?;
    let crops = Crops::new(boxes, index, dims, crop)?;
    let mut out = Tensor::zeros(DType::Float, boxes.shape().clone())?;
    let (values, all_grads) = (image.values::<T>()?, grads.values::<f32>()?);
    for (number, box_gradient_row) in out.values_mut::<f32>()?.chunks_exact_mut(4).enumerate() {
        let (image, grads) = (crops.images[number], &all_grads[number * crops.crop_len()..]);
        crops.for_each_pixel(number, |at, [i, j], y, x| {
            let ((top, bottom, down), (left, right, across)) = (around(y), around(x));
            let corners = [(top, left), (top, right), (bottom, left), (bottom, right)];
            let corners = corners.map(|(y, x)| crops.pixel(image, y, x));
            let (mut by_row, mut by_column) = (0.0, 0.0);
            for c in 0..crops.channels {
                let [tl, tr, bl, br] = corners.map(|at| -> f32 { values[at + c].as_() });
                by_row += grads[at + c] * ((1.0 - across) * (bl - tl) + across * (br - tr));
                by_column += grads[at + c] * ((1.0 - down) * (tr - tl) + down * (br - bl));
            }
            for (axis, (place, slope)) in [(i, by_row), (j, by_column)].into_iter().enumerate() {
                let last = (crops.image[axis] - 1) as f32;
                // The derivative of the sampled coordinate with respect to the end of the box.
                let end = match crops.crop[axis] {
                    1 => 0.5 * last,
                    size => place as f32 * (last / (size - 1) as f32),
                };
                box_gradient_row[axis] += slope * (last - end);
                box_gradient_row[axis + 2] += slope * end;
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
