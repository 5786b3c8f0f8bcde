//! Ops that move blocks of spatial axes into the batch and back, and ops that extract patches of images and
//! volumes.

use super::conv::volumes;
use super::support::{COPIED, MOST_AXES, ORDERED, allocate, copied_type_name, function, launch, read, write};
use crate::engine::{Arguments, Source};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Error, Result};
use graph::Shape;
use graph::ops::space::Blocks;
use graph::ops::window::DataFormat;
use kernels::numeric::dispatch::INDEX;
use kernels::plan::space::{PatchExtraction, plan};

static SOURCE: Source = Source { file: "space.cu", text: include_str!("space.cu") };

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["block_shape", "paddings"],
        ..KernelDef::enqueuing("SpaceToBatchND", &[("T", COPIED), ("Tblock_shape", INDEX)], |i| {
            move_blocks(i, false, true)
        })
    },
    KernelDef {
        host_memory: &["block_shape", "crops"],
        ..KernelDef::enqueuing("BatchToSpaceND", &[("T", COPIED), ("Tblock_shape", INDEX)], |i| {
            move_blocks(i, false, false)
        })
    },
    KernelDef {
        host_memory: &["paddings"],
        ..KernelDef::enqueuing("SpaceToBatch", &[("T", COPIED)], |init| move_blocks(init, true, true))
    },
    KernelDef {
        host_memory: &["crops"],
        ..KernelDef::enqueuing("BatchToSpace", &[("T", COPIED)], |init| move_blocks(init, true, false))
    },
    KernelDef::enqueuing("ExtractImagePatches", &[("T", COPIED)], |init| {
        extracting(init, PatchExtraction::of_images(init.node)?)
    }),
    KernelDef::enqueuing("ExtractVolumePatches", &[("T", ORDERED)], |init| {
        extracting(init, PatchExtraction::of_volumes(init.node)?)
    }),
];

/// Makes a kernel that moves blocks into the batch (`to_batch`) or back. If `of_squares` is set, blocks are
/// squares whose size is an attribute, else the block sizes are an input.
fn move_blocks(init: &KernelInit<'_>, of_squares: bool, to_batch: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let block = of_squares.then(|| init.attr::<i64>("block_size")).transpose()?;
    let name = if to_batch { "to_batch" } else { "to_space" };
    let function = function(init, &SOURCE, format!("{name}<{}>", copied_type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (blocks, shape) = plan(ctx, block, to_batch)?;
        let x = ctx.device_input(0)?;
        let out = allocate(ctx, dtype, shape)?;
        if x.shape.num_elements() > 0 && out.shape.num_elements() > 0 {
            let (wide, narrow) = if to_batch { (&x.shape, &out.shape) } else { (&out.shape, &x.shape) };
            let n = narrow.num_elements();
            let arguments = Arguments::new()
                .address(read(x)?)
                .address(write(&out)?)
                .count(n)
                .structure(words(&blocks, wide, narrow)?);
            launch(ctx, &function, n, arguments)?;
        } else if out.shape.num_elements() > 0 {
            // The input has no elements, so the output consists of padding only.
            super::support::kernel_stream(ctx)?.fill(&out, 0)?;
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the fields of the `Blocks` structure of `space.cu`, in the order of declaration.
fn words(blocks: &Blocks, wide: &Shape, narrow: &Shape) -> Result<impl Iterator<Item = i64>> {
    let axes = blocks.sizes.len();
    if axes > MOST_AXES {
        return Err(Error::unimplemented(format!("GPU kernels support at most {MOST_AXES} axes")));
    }
    let depth: usize = wide[axes + 1..].iter().product();
    let padded = |values: Vec<usize>| {
        (0..MOST_AXES).map(move |i| values.get(i).map_or(0, |&value| value as i64)).collect::<Vec<i64>>()
    };
    let tables = [
        padded(blocks.sizes.clone()),
        padded(blocks.margins.iter().map(|margin| margin[0]).collect()),
        padded(wide[1..=axes].to_vec()),
        padded(narrow[1..=axes].to_vec()),
    ];
    Ok([axes, wide[0], depth].into_iter().map(|v| v as i64).chain(tables.concat()))
}

/// Makes a kernel that extracts patches, with the `patches` kernel of convolutions over volumes.
fn extracting(init: &KernelInit<'_>, extraction: PatchExtraction) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let patches = function(init, &volumes::SOURCE, format!("patches<{}>", copied_type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let extracted = extraction.of(&x.shape)?;
        let out = allocate(ctx, dtype, extracted.shape)?;
        let n = out.shape.num_elements();
        let windows = extracted.windows.each_ref();
        let arguments = Arguments::new()
            .address(read(x)?)
            .address(write(&out)?)
            .count(n)
            .count(0)
            .structure(volumes::words(DataFormat::Nhwc, extracted.channels, windows));
        launch(ctx, &patches, n, arguments)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
