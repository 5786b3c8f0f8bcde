//! Crops of boxes in images, resized to one size, and their gradients; the module `suppress` has non-maximum
//! suppression. The index of each box's image is in host memory; a box with a non-finite side is outside its
//! image.

pub(super) mod suppress;

use super::copy::zeros;
use super::support::{SUMMED, allocate, function, kernel_stream, launch, read, type_name, upload, write};
use crate::engine::{Arguments, Source};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{DeviceTensor, Result};
use graph::{DType, Shape, Tensor};
use kernels::plan::boxes::{CropMethod, crop_size, grad_crop, image_dims, image_size, images_of};

static SOURCE: Source = Source { file: "boxes.cu", text: include_str!("boxes.cu") };

/// Dtypes of images.
const IMAGES: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::Int8,
    DType::Int16,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["box_ind", "crop_size"],
        ..KernelDef::of("CropAndResize", &[("T", IMAGES)], crop)
    },
    KernelDef {
        host_memory: &["box_ind", "image_size"],
        ..KernelDef::of("CropAndResizeGradImage", &[("T", SUMMED)], image_gradient)
    },
    KernelDef {
        host_memory: &["box_ind"],
        ..KernelDef::of("CropAndResizeGradBoxes", &[("T", IMAGES)], boxes_gradient)
    },
];

/// Returns the fields of the `Crops` structure of `boxes.cu`, in the order of declaration.
fn words([_, rows, columns, channels]: [usize; 4], crop: [usize; 2], is_nearest: bool) -> [i64; 6] {
    [rows, columns, crop[0], crop[1], channels, usize::from(is_nearest)].map(|word| word as i64)
}

/// Uploads the index of each box's image to the GPU.
fn table(ctx: &KernelContext<'_>, images: &[usize]) -> Result<DeviceTensor> {
    let images: Vec<i64> = images.iter().map(|&image| image as i64).collect();
    upload(ctx, &Tensor::vector(&images)?)
}

/// Makes the kernel of `CropAndResize`.
fn crop(init: &KernelInit<'_>) -> Result<Kernel> {
    let is_nearest = CropMethod::of(init)? == CropMethod::Nearest;
    let outside = f64::from(init.attr::<f32>("extrapolation_value")?);
    let crop = function(init, &SOURCE, format!("crop<{}>", type_name(init.input_type(0))?))?;
    Kernel::sync(move |ctx| {
        let (x, boxes) = (ctx.device_input(0)?, ctx.device_input(1)?);
        let (size, dims) = (crop_size(ctx)?, image_dims(&x.shape)?);
        let images = images_of(&boxes.shape, ctx.input(2)?, dims, size)?;
        let y = allocate(ctx, DType::Float, Shape::new(&[images.len(), size[0], size[1], dims[3]])?)?;
        let n = y.shape.num_elements();
        if n > 0 {
            let images = table(ctx, &images)?;
            let inputs = Arguments::new().address(read(x)?).address(read(boxes)?).address(read(&images)?);
            let arguments = inputs.address(write(&y)?).count(n).structure(words(dims, size, is_nearest));
            launch(ctx, &crop, n, arguments.real(outside))?;
        }
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `CropAndResizeGradImage`, the gradient with respect to the image.
fn image_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let (is_nearest, dtype) = (CropMethod::of(init)? == CropMethod::Nearest, init.output_type(0));
    let gradient = function(init, &SOURCE, format!("crop_image_gradient<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (dy, boxes, shape) = (ctx.device_input(0)?, ctx.device_input(1)?, image_size(ctx)?);
        let dims = image_dims(&shape)?;
        let size = grad_crop(&dy.shape, dims[3], &boxes.shape)?;
        let images = images_of(&boxes.shape, ctx.input(2)?, dims, size)?;
        let (dx, n) = (zeros(ctx, dtype, shape)?, dy.shape.num_elements());
        if n > 0 {
            let images = table(ctx, &images)?;
            let inputs = Arguments::new().address(read(dy)?).address(read(boxes)?).address(read(&images)?);
            let arguments = inputs.address(write(&dx)?).count(n);
            launch(ctx, &gradient, n, arguments.structure(words(dims, size, is_nearest)))?;
        }
        ctx.set_output(0, dx);
        Ok(())
    })
}

/// Makes the kernel of `CropAndResizeGradBoxes`, the gradient with respect to the boxes.
fn boxes_gradient(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = format!("crop_boxes_gradient<{}>", type_name(init.input_type(1))?);
    let gradient = function(init, &SOURCE, name)?;
    Kernel::sync(move |ctx| {
        let (dy, x, boxes) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let dims = image_dims(&x.shape)?;
        let size = grad_crop(&dy.shape, dims[3], &boxes.shape)?;
        let images = images_of(&boxes.shape, ctx.input(3)?, dims, size)?;
        let sides = allocate(ctx, DType::Float, boxes.shape.clone())?;
        if !images.is_empty() {
            let (count, images) = (images.len(), table(ctx, &images)?);
            let inputs = Arguments::new().address(read(dy)?).address(read(x)?).address(read(boxes)?);
            let arguments = inputs.address(read(&images)?).address(write(&sides)?).count(count);
            let arguments = arguments.structure(words(dims, size, false));
            kernel_stream(ctx)?.launch_blocks(&gradient, count, &arguments)?;
        }
        ctx.set_output(0, sides);
        Ok(())
    })
}
