//! Kernels of bounding boxes in images: cropping, drawing, random sampling and non-maximum suppression.

mod crop;
mod draw;
mod sample;
mod suppress;

use crate::numeric::dispatch::{REALS, dispatch};
use crate::plan::boxes::CropMethod;
use device::kernel::{Kernel, KernelDef};
use graph::DType;

const PLAIN: &[(&str, &[DType])] = &[("T", REALS)];
const SCORES: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half])];
const SIZES: &[(&str, &[DType])] =
    &[("T", &[DType::UInt8, DType::Int8, DType::Int16, DType::Int32, DType::Int64])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["crop_size"],
        ..KernelDef::of("CropAndResize", PLAIN, |i| {
            let (method, outside) = (CropMethod::of(i)?, i.attr("extrapolation_value")?);
            dispatch!(real, i.input_type(0), T => {
                Kernel::sync(move |ctx| crop::forward(ctx, method, outside, crop::write_crops::<T>))
            })
        })
    },
    KernelDef {
        host_memory: &["image_size"],
        ..KernelDef::of(
            "CropAndResizeGradImage",
            &[("T", &[DType::Float, DType::Half, DType::Double])],
            |i| {
                let (method, dtype) = (CropMethod::of(i)?, i.output_type(0));
                dispatch!(@arms dtype, T => {
                    let write = crop::write_image_gradient::<T>;
                    Kernel::sync(move |ctx| crop::image_gradient(ctx, method, dtype, write))
                }; Float f32, Half half::f16, Double f64)
            },
        )
    },
    KernelDef::of("CropAndResizeGradBoxes", PLAIN, |i| {
        dispatch!(real, i.input_type(1), T => {
            Kernel::sync(|ctx| crop::box_gradient(ctx, crop::add_to_boxes::<T>))
        })
    }),
    KernelDef::of("DrawBoundingBoxes", SCORES, |_| Kernel::sync(|ctx| draw::draw(ctx, false))),
    KernelDef::of("DrawBoundingBoxesV2", SCORES, |_| Kernel::sync(|ctx| draw::draw(ctx, true))),
    KernelDef::of("SampleDistortedBoundingBox", SIZES, |i| {
        let sampler = sample::Sampler::of(i, Some(i.attr("min_object_covered")?))?;
        Kernel::sync(move |ctx| sampler.run(ctx))
    }),
    KernelDef::of("SampleDistortedBoundingBoxV2", SIZES, |i| {
        let sampler = sample::Sampler::of(i, None)?;
        Kernel::sync(move |ctx| sampler.run(ctx))
    }),
    KernelDef::of("StatelessSampleDistortedBoundingBox", SIZES, |i| {
        let sampler = sample::Sampler::of_seeds(i)?;
        Kernel::sync(move |ctx| sampler.run(ctx))
    }),
    KernelDef::of("CombinedNonMaxSuppression", &[], |i| {
        let (pads, clips) = (i.attr("pad_per_class")?, i.attr("clip_boxes")?);
        Kernel::sync(move |ctx| suppress::combined(ctx, pads, clips))
    }),
    KernelDef::of("RandomCrop", PLAIN, sample::random_crop),
    KernelDef::of("NonMaxSuppression", &[], |i| {
        let threshold = i.attr("iou_threshold")?;
        Kernel::sync(move |ctx| suppress::version_1(ctx, threshold))
    }),
    KernelDef::of("NonMaxSuppressionV2", SCORES, |_| Kernel::sync(suppress::versions_2_and_3)),
    KernelDef::of("NonMaxSuppressionV3", SCORES, |_| Kernel::sync(suppress::versions_2_and_3)),
    KernelDef::of("NonMaxSuppressionV4", SCORES, |i| {
        let padded = i.attr("pad_to_max_output_size")?;
        Kernel::sync(move |ctx| suppress::version_4(ctx, padded))
    }),
    KernelDef::of("NonMaxSuppressionV5", SCORES, |i| {
        let padded = i.attr("pad_to_max_output_size")?;
        Kernel::sync(move |ctx| suppress::version_5(ctx, padded))
    }),
    KernelDef::of("NonMaxSuppressionWithOverlaps", &[], |_| Kernel::sync(suppress::with_overlaps)),
];
